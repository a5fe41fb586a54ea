"""Which incident a Sentry project has. The name of a project does not give away what broke."""

import re
from hashlib import blake2s

from names import Split
from world import Incident, draw_incident

WORDS: dict[Split, str] = {"train": "harbour", "held_out": "meadow"}
_PROJECT = re.compile(r"([a-z]{1,20})-([0-9]{1,9})")


def project_of(split: Split, seed: int) -> str:
    """The project of a seed."""
    return f"{WORDS[split]}-{seed}"


def incident_of(project: str) -> Incident:
    """The incident of a project: same name, same incident. Raises ValueError."""
    match = _PROJECT.fullmatch(project)
    splits = [split for split, word in WORDS.items() if match and word == match[1]]
    if not splits:
        raise ValueError(f"there is no project {project!r:.80}; the alert names the project")
    # A seed would do, but the cause follows from it: a policy could read it off the name.
    return draw_incident(splits[0], int.from_bytes(blake2s(project.encode()).digest()[:6], "big"))
