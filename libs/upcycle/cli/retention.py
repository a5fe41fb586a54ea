"""`upcycle retention`: what is old and needed by nothing, and its removal by the services that own it."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.errors import UnknownName, UpcycleError
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.api.retention.v1.service_pb2 import SweepRetentionResponse

OWNERS: Final = {
    "bodies": "trajectories",
    "episodes": "trajectories",
    "runs": "tasksets",
    "sources": "tasksets",
}
"""What can be removed, in the order in which it goes, and the peer that owns it."""
Age = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
"""`-3d` is refused as an age, not taken for an option."""
AGE_SETTINGS: Final = {
    "bodies": "TRAJECTORY_STORE_RETENTION_BODIES_DAYS",
    "episodes": "TRAJECTORY_STORE_RETENTION_EPISODES_DAYS",
    "runs": "SCENARIO_RUNNER_RETENTION_RUNS_DAYS",
    "sources": "SCENARIO_RUNNER_RETENTION_SOURCES_DAYS",
}
"""What says how old each may be where --older-than does not."""
BATCH_TIMEOUT_S: Final = 120.0
_AGE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([hdw])")
_SECONDS: Final = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class AgeInvalid(UpcycleError, ValueError):
    """An age on the command line cannot be used."""

    kind = "settings_invalid"


@dataclass
class Swept:
    """All batches of one kind of thing."""

    what: str
    policy: str = ""
    number: int = 0
    size_bytes: int = 0
    oldest: str = ""
    kept: Counter[str] = field(default_factory=Counter)

    def add(self, batch: "SweepRetentionResponse") -> None:
        """The oldest comes first."""
        self.policy = batch.policy
        self.number += batch.number
        self.size_bytes += batch.size_bytes
        if batch.HasField("oldest") and not self.oldest:
            self.oldest = batch.oldest.ToJsonString()
        self.kept.update(dict(batch.kept))


async def retention(
    *what: str, older_than: Age = None, apply: bool = False, as_json: JsonFlag = False
) -> int:
    """Show what is old and needed by nothing. Nothing is removed without --apply.

    :param what: bodies (of trajectories), episodes (rows without a body), runs (groups and episodes that a
        finished run planned), sources (of environments that nothing refers to); all by default.
    :param older_than: an age such as 30d, 36h or 8w, at least one day, instead of the services' settings.
    :param apply: remove it. What a run, a checkpoint or a gate refers to stays in any case.
    :param as_json: one JSON line for each kind of thing.
    """
    names = wanted(what)
    age_s = None if older_than is None else seconds_of(older_than)
    found = []
    async with Platform() as platform:
        for name in names:
            found.append(await _sweep(platform, name, age_s, apply=apply))
            if as_json:
                print_json("retention", _fields(found[-1], is_removed=apply))
    if not as_json:
        result_console().print(_table(found, is_removed=apply))
        if age_s is None and not any(one.number or one.kept for one in found):
            settings = ", ".join(AGE_SETTINGS[name] for name in names)
            human().print(f"where no age is set, nothing is old: give --older-than, or set {settings}")
        if not apply:
            human().print("nothing was removed; add --apply")
    return Exit.OK


def wanted(what: tuple[str, ...]) -> list[str]:
    """In the order in which they go. Raises UnknownName."""
    for name in what:
        if name not in OWNERS:
            raise UnknownName(
                f"{name!r} is nothing that retention removes", f"it removes {', '.join(OWNERS)}"
            )
    return [name for name in OWNERS if not what or name in what]


def seconds_of(age: str) -> float:
    """Of `30d`, `36h`, `8w`. Raises AgeInvalid for anything else, and for less than a day."""
    found = _AGE.fullmatch(age)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if seconds < _SECONDS["d"]:
        raise AgeInvalid(
            f"--older-than is {age!r:.80}, expected an age of at least one day", "write it as 30d, 36h or 8w"
        )
    return seconds


async def _sweep(platform: Platform, what: str, age_s: float | None, *, apply: bool) -> Swept:
    from upcycle.api.retention.v1.service_pb2 import SweepRetentionRequest

    swept, request = Swept(what), SweepRetentionRequest(what=what, apply=apply)
    if age_s is not None:
        request.older_than_s = age_s
    while True:
        batch = await platform.retention[OWNERS[what]].SweepRetention(request, timeout=BATCH_TIMEOUT_S)
        swept.add(batch)
        if not batch.next:
            return swept
        request.after = batch.next


def _fields(swept: Swept, *, is_removed: bool) -> dict[str, Any]:
    return {
        "what": swept.what,
        "policy": swept.policy,
        "removed" if is_removed else "would_remove": swept.number,
        "size_bytes": swept.size_bytes,
        "oldest": swept.oldest,
        "kept": dict(swept.kept),
    }


def _table(found: list[Swept], *, is_removed: bool) -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "what", "policy", "removed" if is_removed else "would go", "bytes", "oldest", "kept", box=None
    )
    for one in found:
        kept = ", ".join(f"{number} ({why})" for why, number in one.kept.most_common())
        row = (one.what, one.policy, str(one.number), str(one.size_bytes), one.oldest[:10], kept)
        table.add_row(*map(Text, row))
    return table
