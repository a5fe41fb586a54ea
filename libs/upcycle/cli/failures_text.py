"""Failures of an evaluation's episodes, one example of each kind with its traceback."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from upcycle.cli.terminal_text import terminal_text
from upcycle.results import Run
from upcycle.wording import amount

MAX_SHOWN: Final = 3
_ID: Final = re.compile(r"[0-9a-f]{8,}")


@dataclass(frozen=True, slots=True)
class FailureExample:
    """The first episode of a kind of failure. is_policys: its reward is 0; else it has none."""

    kind: str
    is_policys: bool
    count: int
    task_slug: str
    episode_id: str
    detail: str


def failure_examples(runs: Iterable[Run]) -> list[FailureExample]:
    """One per kind and first line of the detail, whatever ids are in it; most frequent first."""
    alike: defaultdict[tuple[str, bool, str], list[Run]] = defaultdict(list)
    for run in runs:
        if kind := run.failure or run.policy_failure:
            first_line = run.failure_detail.partition("\n")[0]
            alike[kind, not run.failure, _ID.sub("#", first_line)].append(run)
    return [
        FailureExample(
            kind, is_policys, len(found), found[0].task_slug, found[0].episode_id, found[0].failure_detail
        )
        for (kind, is_policys, _), found in sorted(alike.items(), key=lambda item: -len(item[1]))
    ]


def failures_text(examples: Sequence[FailureExample]) -> str:
    """For a terminal; "" where nothing failed."""
    parts = []
    for one in examples[:MAX_SHOWN]:
        whose = "by the policy, reward 0" if one.is_policys else "no reward"
        times = f" and {one.count - 1} more" if one.count > 1 else ""
        detail = terminal_text(one.detail or "no detail is known").replace("\n", "\n  ")
        parts.append(f"{one.kind} ({whose}): task {one.task_slug}, {one.episode_id}{times}\n  {detail}")
    if more := examples[MAX_SHOWN:]:
        parts.append(f"{amount(len(more), 'other failure')}: --json has all of them")
    return "\n".join(parts)


def failures_json(examples: Sequence[FailureExample]) -> list[dict[str, Any]]:
    """All of them."""
    return [asdict(one) for one in examples]
