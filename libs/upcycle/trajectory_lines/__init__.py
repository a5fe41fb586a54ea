"""`trajectories.jsonl`: one episode a line, with its tools, ids, run and version.

docs/reference/trajectories-jsonl.md names the fields. `writing` writes them, `reading` reads them.
"""
