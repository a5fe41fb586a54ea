"""Which incident a Sentry project has. The name of a project does not give away what broke."""

import re
from hashlib import blake2s

from names import Names, Split
from world import Incident, draw_incident

NAMES: Names = "few"
"""few: sixteen service names in all projects, for tiny models. new: those of a held-out project occur in no
other one."""
WORDS = ("harbour", "meadow", "canyon", "island", "forest", "valley", "summit", "lagoon", "desert", "prairie")
_PROJECT = re.compile(r"([a-z]{1,20})-([0-9]{1,9})")
_HELD_OUT_EVERY = 5


def project_of(split: Split, seed: int) -> str:
    """The project of a seed: words and numbers occur in both splits, a project in one of them."""
    round_, place = divmod(seed, len(WORDS))
    if split == "held_out":
        number = round_ * _HELD_OUT_EVERY
    else:
        fifth, rest = divmod(round_, _HELD_OUT_EVERY - 1)
        number = fifth * _HELD_OUT_EVERY + 1 + rest
    return f"{WORDS[place]}-{number + (-place) % _HELD_OUT_EVERY}"


def incident_of(project: str) -> Incident:
    """The incident of a project: same name, same incident. Raises ValueError."""
    match = _PROJECT.fullmatch(project)
    if match is None or match[1] not in WORDS:
        raise ValueError(f"there is no project {project!r:.80}; the alert names the project")
    is_held_out = (WORDS.index(match[1]) + int(match[2])) % _HELD_OUT_EVERY == 0
    # A seed would do, but the cause follows from it: a policy could read it off the name.
    seed = int.from_bytes(blake2s(project.encode()).digest()[:6], "big")
    return draw_incident("held_out" if is_held_out else "train", seed, NAMES)
