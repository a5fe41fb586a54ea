"""A decision in words."""

from typing import Final

from upcycle.gate.decision import Decision, Ground, Verdict
from upcycle.gate.families import FamilyRisk
from upcycle.gate.gain import Gain, SampleNeeded
from upcycle.gate.rule import GateRule
from upcycle.wording import amount

PASSED_AND_WAITS: Final = "it passed, and waits"
"""In the reason of a candidate that becomes head once the alarms of its runs are known."""

_OPENINGS: Final = {
    Verdict.PROMOTE: "promoted",
    Verdict.HOLD: "held",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.CONTINUE: "undecided",
}

_LOST: Final = "lost to infrastructure"
_UNGRADED: Final = f"without a shadow grade or {_LOST}"


def reason_of(decision: Decision, rule: GateRule, *, by_shadow: bool = False) -> str:
    """What was decided, on which figures, at which level. by_shadow: the shadow graders said what a success
    is, so that an attempt may also be missing because they did not grade it."""
    parts = [_why(decision, rule, by_shadow)]
    if decision.gain is not None:
        parts.append(_figures(decision.gain, decision))
    if by_shadow and decision.played:
        parts.append(_counted(decision))
    if decision.verdict is Verdict.PROMOTE and decision.unproven:
        parts.append(f"not proven and watched: {', '.join(decision.unproven)}")
    return f"{_OPENINGS[decision.verdict]}: {'; '.join(parts)}"


def _why(decision: Decision, rule: GateRule, by_shadow: bool) -> str:
    match decision.ground:
        case Ground.NEXT_LOOK | Ground.FAMILIES_AT_RISK:
            return _open(decision)
        case Ground.GAIN_NOT_SHOWN:
            needed = decision.needed or SampleNeeded(None, None)
            return f"a gain above {rule.min_gain:.1%} is not shown; {_more(needed)}"
        case Ground.FAMILY_LOST:
            return "; ".join(_lost(one) for one in decision.families if one.is_lost)
        case Ground.CRITICAL_NOT_PROVEN:
            critical = [one for one in decision.families if one.family in rule.critical]
            return "; ".join(_not_proven(one) for one in critical if not one.is_proven)
        case ground:
            return _plain(decision, rule, by_shadow)[ground]


def _plain(decision: Decision, rule: GateRule, by_shadow: bool) -> dict[Ground, str]:
    missing = f"{amount(decision.missing, 'attempt')} {_UNGRADED if by_shadow else _LOST}"
    return {
        Ground.GAIN_SHOWN: f"a gain above {rule.min_gain:.1%} is shown, no family lost more than its margin",
        Ground.NO_GAIN_IN_SIGHT: f"a gain above {rule.min_gain + rule.futility_gain:.1%} is unlikely",
        Ground.EVIDENCE_INCOMPLETE: f"evidence incomplete: {missing} could turn the verdict",
        Ground.TOO_FEW_TASKS: "a gate needs at least 2 held-out tasks",
    }


def _open(decision: Decision) -> str:
    what = "to be played up to " + amount(max(decision.more.values()), "attempt")
    total = amount(len(decision.more), "task")
    if decision.ground is Ground.NEXT_LOOK:
        return f"{total} {what}"
    return f"the gain is shown; {total} of families at risk {what}"


def _counted(decision: Decision) -> str:
    """Of both sides. An attempt that its policy failed counts as 0, with or without a shadow grade."""
    if not decision.missing:
        return f"by the shadow graders, all {amount(decision.played, 'attempt')} counted"
    counted = decision.played - decision.missing
    return (
        f"by the shadow graders, {counted} of {amount(decision.played, 'attempt')} counted, "
        f"{decision.missing} missing ({_UNGRADED}): to promote, the missing ones count as failures of the "
        "candidate and successes of head"
    )


def _figures(gain: Gain, decision: Decision) -> str:
    return (
        f"success {gain.other_rate:.1%} -> {gain.rate:.1%} on {amount(gain.num_tasks, 'task')} at "
        f"{decision.attempts} attempts a side, lower bound {gain.lower:+.1%}, exact p {gain.p:.2g}; "
        f"both at level {gain.level:.2g} of this look, {decision.level:.2g} of this candidate"
    )


def _lost(one: FamilyRisk) -> str:
    other = f" against {one.against}, the best head so far" if one.against else ""
    return (
        f"family {one.family!r} measured {one.mean:+.1%} on {amount(one.num_tasks, 'task')}{other}: a loss "
        f"of more than {one.margin:.1%} is more likely than not ({one.risk:.0%})"
    )


def _not_proven(one: FamilyRisk) -> str:
    other = f" against {one.against}" if one.against else ""
    return (
        f"critical family {one.family!r} is not proven to keep its margin of {one.margin:.1%}: measured "
        f"{one.mean:+.1%} on {amount(one.num_tasks, 'task')}{other}, p {one.risk:.2g}"
    )


def _more(needed: SampleNeeded) -> str:
    options = []
    if needed.tasks is not None:
        options.append(f"about {needed.tasks} tasks")
    if needed.attempts is not None:
        options.append(f"{needed.attempts} attempts per task")
    if not options:
        return "more evidence is unlikely to change it"
    return "would take " + " or ".join(options) + " at this effect"
