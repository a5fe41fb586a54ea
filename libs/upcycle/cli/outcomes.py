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
    "short_group": "too few rewards",
    "run_over": "run over",
    "truncated_policy": "truncated policy",
    "split": "held-out taskset",
    "version": "other version",
}


def word(outcome: str) -> str:
    """An outcome or a reason as people read it: `excluded(zero_spread)` is "no spread"."""
    kind, opened, rest = outcome.partition("(")
    reason = rest.removesuffix(")") if opened else kind
    return _WORDS.get(reason, reason.replace("_", " "))


def counted(outcomes: Mapping[str, int]) -> str:
    """`trained 32, no spread 18`: trained first, then the most frequent; what never happened is absent."""
    totals: Counter[str] = Counter()
    for outcome, count in outcomes.items():
        totals[word(outcome)] += count
    ordered = sorted(totals.items(), key=lambda item: (item[0] != TRAINED, -item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered if count)


def groups_text(run: "Run") -> str:
    """`groups 50: trained 32, no spread 18`; empty while none has ended."""
    outcomes = run.counts.groups_by_outcome
    total = sum(outcomes.values())
    return f"groups {total}: {counted(outcomes)}" if total else ""


def nothing_learnt(run: "Run") -> str:
    """`50 of 50 groups had no spread: …`, while groups end and none has trained; empty otherwise."""
    outcomes = dict(run.counts.groups_by_outcome)
    total = sum(outcomes.values())
    if not total or run.step or outcomes.get(TRAINED):
        return ""
    flat = sum(count for outcome, count in outcomes.items() if word(outcome) == _WORDS["zero_spread"])
    if flat == total:
        mean = f"the rewards within each group are equal, {run.reward_mean:.3f} on average"
        return f"{total} of {total} groups had no spread: {mean}; nothing can be learnt from them"
    return f"{total} of {total} groups ended without a step: {counted(outcomes)}"


def source_text(source: "SourceReport") -> str:
    """`from run-… 38/64 groups trained, 20 no spread, 6 waiting`."""
    parts = [f"from {source.run_id} {source.trained}/{source.groups} groups trained"]
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
