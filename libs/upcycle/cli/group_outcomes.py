"""How groups ended, in words: trained, no spread, stale … of a run and of its sources."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, SourceReport

TRAINED: Final = "trained"
_WORDS: Final = {
    "zero_spread": "no spread",
    "incomplete_group": "incomplete",
    "held_out": "held out",
    "other_environment": "other environment",
    "no_tokens": "no tokens",
    "group_of_one": "group of one",
    "group_too_large": "group too large",
    "too_large": "group too large",
    "short_group": "too few rewards",
    "run_over": "run over",
    "split": "held-out taskset",
    "version": "other version",
}


def word(outcome: str) -> str:
    """An outcome or a reason as people read it: `excluded(zero_spread)` is "no spread"."""
    kind, opened, rest = outcome.partition("(")
    reason = rest.removesuffix(")") if opened else kind
    return _WORDS.get(reason, reason.replace("_", " "))


def counted(outcomes: Mapping[str, int], most: int | None = None) -> str:
    """`32 trained, 18 no spread`: trained first, then by frequency, without zeros. most: at most so many
    kinds are named; the rest is counted as `other`.
    """
    totals: Counter[str] = Counter()
    for outcome, count in outcomes.items():
        totals[word(outcome)] += count
    known = [(name, count) for name, count in totals.items() if count]
    ordered = sorted(known, key=lambda item: (item[0] != TRAINED, -item[1], item[0]))
    named, rest = ordered[:most], sum(count for _, count in ordered[len(ordered[:most]) :])
    return ", ".join(f"{count} {name}" for name, count in [*named, *([("other", rest)] if rest else [])])


def groups_text(run: "Run", most: int | None = None) -> str:
    """`groups 50: 32 trained, 18 no spread`; empty while none has ended. most: as of counted."""
    outcomes = run.counts.groups_by_outcome
    total = sum(outcomes.values())
    return f"groups {total}: {counted(outcomes, most)}" if total else ""


def source_text(source: "SourceReport") -> str:
    """`from run-… 38/64 groups trained, 20 no spread, 6 waiting`; with single sessions `… (4 single)`."""
    single = f" ({source.single} single)" if source.single else ""
    parts = [f"from {source.run_id} {source.trained}/{source.groups} groups trained{single}"]
    totals: Counter[str] = Counter()
    for reason, count in source.left_out.items():
        totals[word(reason)] += count
    parts += [f"{count} {reason}" for reason, count in totals.most_common() if count]
    waiting = source.waiting + source.offered
    return ", ".join([*parts, f"{waiting} waiting"] if waiting else parts)


def step_text(run: "Run", step: int) -> str:
    """`step 7/100`; `step 7` where the run goes on until it is stopped."""
    limit = run.spec.training.steps
    return f"step {step}/{limit}" if limit else f"step {step}"
