"""Which files hold tasks."""

from typing import Final

TASKS_FILES: Final = (".py", ".json", ".jsonl", ".csv")
"""Endings of the files that `Taskset.load` reads."""
