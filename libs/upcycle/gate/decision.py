"""The promotion gate's decision on what was played so far of a candidate and of head, side by side.

`decide` replays the looks on the attempts that each of them orders, so it keeps no state and gives the same
answer for the same outcomes, in one call or look by look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from upcycle.gate.baseline import Baseline
from upcycle.gate.evidence import Evidence, TaskPlay, bits_of, plays_at
from upcycle.gate.families import FamilyRisk, FamilySums, critical_risk, family_risk, family_sums
from upcycle.gate.gain import Gain, SampleNeeded, against_version, gain_of, needed_for
from upcycle.gate.outcomes import Outcomes, TaskCount
from upcycle.gate.rule import GateRule
from upcycle.gate.spending import look_levels

FUTILITY_LEVEL: Final = 0.10


class Verdict(StrEnum):
    """CONTINUE: play what `more` says and ask again. The others are final."""

    PROMOTE = "promote"
    HOLD = "hold"
    INCONCLUSIVE = "inconclusive"
    CONTINUE = "continue"


class Ground(StrEnum):
    """Why, for programs; `words.reason_of` says it to people."""

    GAIN_SHOWN = "gain_shown"
    NEXT_LOOK = "next_look"
    FAMILIES_AT_RISK = "families_at_risk"
    NO_GAIN_IN_SIGHT = "no_gain_in_sight"
    GAIN_NOT_SHOWN = "gain_not_shown"
    FAMILY_LOST = "family_lost"
    CRITICAL_NOT_PROVEN = "critical_not_proven"
    EVIDENCE_INCOMPLETE = "evidence_incomplete"
    TOO_FEW_TASKS = "too_few_tasks"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with what was shown at which level."""

    verdict: Verdict
    ground: Ground
    attempts: int  # of the last look at all tasks; 0 before the first
    level: float  # of this candidate in its run
    gain: Gain | None = None  # against head, at the nominal level of that look; None before the first
    families: tuple[FamilyRisk, ...] = ()  # against head, or the best head so far where that is more at risk
    base: Gain | None = None  # against the model's base version; decides nothing
    missing: int = 0  # attempts of either side without an outcome
    played: int = 0  # attempts of both sides that the decision rests on
    more: Mapping[str, int] = field(default_factory=dict)  # task to its attempts per side; CONTINUE only
    needed: SampleNeeded | None = None  # INCONCLUSIVE only

    @property
    def unproven(self) -> tuple[str, ...]:
        """Families whose margin is not proven: a promotion lists them, and the watch looks at them."""
        return tuple(one.family for one in self.families if not one.is_proven)


def decide(
    outcomes: Outcomes,
    rule: GateRule,
    level: float,
    best: Mapping[str, Baseline] | None = None,
    base: Mapping[str, TaskCount] | None = None,
) -> Decision:
    """The verdict on a candidate.

    level: of this candidate, from `AlphaWealth.next_level`, the same at each call. best: by family, where the
    best head so far is not head. base: of the model's base version, by task.
    """
    return _Replay(outcomes, rule, level, best or {}, base or {}).decision()


class _Looked:
    """One look at all tasks: as seen, and at its worst."""

    def __init__(self, evidence: Evidence, attempts: int, nominal: float) -> None:
        self.evidence, self.attempts = evidence, attempts
        self.gain = gain_of(evidence.seen, nominal) if len(evidence.seen) > 1 else None
        self.worst = self.gain if self.gain and not evidence.missing else gain_of(evidence.worst, nominal)


class _Replay:
    def __init__(
        self,
        outcomes: Outcomes,
        rule: GateRule,
        level: float,
        best: Mapping[str, Baseline],
        base: Mapping[str, TaskCount],
    ) -> None:
        self._outcomes, self._rule, self._level, self._best, self._base = outcomes, rule, level, best, base
        self._tasks = bits_of(outcomes)
        self._attempts = dict.fromkeys((task.family for task in outcomes.tasks), 0)

    def decision(self) -> Decision:
        rule = self._rule
        if len(self._tasks) < 2:
            return Decision(Verdict.HOLD, Ground.TOO_FEW_TASKS, 0, self._level)
        looked: _Looked | None = None
        for look, nominal in zip(rule.looks, look_levels(self._level, rule.looks), strict=True):
            self._attempts = dict.fromkeys(self._attempts, look)
            more = self._lacking()
            if more:
                return replace(self._reported(looked, Verdict.CONTINUE, Ground.NEXT_LOOK), more=more)
            looked = _Looked(plays_at(self._tasks, self._attempts), look, nominal)
            if looked.worst.is_above(rule.min_gain):
                return self._families_decide(looked)
            if looked.gain and not looked.gain.may_exceed(rule.min_gain + rule.futility_gain, FUTILITY_LEVEL):
                return self._reported(looked, Verdict.HOLD, Ground.NO_GAIN_IN_SIGHT)
        return self._without_gain(looked)

    def _lacking(self) -> dict[str, int]:
        wanted = self._attempts
        return {t.task: wanted[t.family] for t in self._outcomes.tasks if t.played < wanted[t.family]}

    def _reported(self, looked: "_Looked | None", verdict: Verdict, ground: Ground) -> Decision:
        if looked is None:
            return Decision(verdict, ground, 0, self._level)
        evidence = looked.evidence
        return Decision(
            verdict,
            ground,
            looked.attempts,
            self._level,
            gain=looked.gain,
            families=self._risks(evidence.seen),
            base=against_version(evidence.seen, self._base, self._rule.alpha),
            missing=evidence.missing,
            played=evidence.played,
        )

    def _without_gain(self, looked: "_Looked | None") -> Decision:
        assert looked is not None  # noqa: S101 - a rule has a look
        gain = looked.gain
        if gain is None or (looked.evidence.missing and gain.is_above(self._rule.min_gain)):
            return self._reported(looked, Verdict.HOLD, Ground.EVIDENCE_INCOMPLETE)
        needed = needed_for(looked.evidence.seen, self._rule.min_gain, gain.level)
        return replace(self._reported(looked, Verdict.INCONCLUSIVE, Ground.GAIN_NOT_SHOWN), needed=needed)

    def _families_decide(self, looked: "_Looked") -> Decision:
        """After the gain was shown: more attempts at families at risk, until all are proven or at the cap."""
        while True:
            evidence = plays_at(self._tasks, self._attempts)
            risks = self._risks(evidence.worst)
            at_risk = [one.family for one in risks if not one.is_proven]
            raised = {name: self._next(name) for name in at_risk if self._next(name) > self._attempts[name]}
            more: dict[str, int] = {}
            if raised:
                self._attempts |= raised
                more = self._lacking()
            if more or not raised:
                reported = self._reported(looked, Verdict.CONTINUE, Ground.FAMILIES_AT_RISK)
                families = self._risks(evidence.seen) if evidence.missing else risks
                reported = replace(
                    reported, families=families, missing=evidence.missing, played=evidence.played, more=more
                )
                return reported if more else self._at_the_end(reported, risks)

    def _next(self, family: str) -> int:
        """More attempts at this family: the next look, doubled beyond the last, its cap at most."""
        now = self._attempts[family]
        later = [look for look in self._rule.looks if look > now]
        return min(later[0] if later else 2 * now, max(now, self._rule.attempts(family)))

    def _at_the_end(self, last: Decision, risks: Sequence[FamilyRisk]) -> Decision:
        def blocking(families: Sequence[FamilyRisk]) -> Ground | None:
            if any(one.is_lost for one in families if one.family not in self._rule.critical):
                return Ground.FAMILY_LOST
            if any(not one.is_proven for one in families if one.family in self._rule.critical):
                return Ground.CRITICAL_NOT_PROVEN
            return None

        ground = blocking(last.families) or (blocking(risks) and Ground.EVIDENCE_INCOMPLETE)
        if ground is not None:
            return replace(last, verdict=Verdict.HOLD, ground=ground)
        return replace(last, verdict=Verdict.PROMOTE, ground=Ground.GAIN_SHOWN)

    def _risks(self, plays: Sequence[TaskPlay]) -> tuple[FamilyRisk, ...]:
        """Of each family, against head or the best head so far, whichever is more at risk."""
        head = family_sums((play.family, play.difference) for play in plays)
        best = family_sums(self._against_best(plays)) if self._best else {}
        risks = []
        for family, sums in head.items():
            found = [self._risk(sums, tuple(head.values()), "")]
            if family in self._best:
                found.append(self._risk(best[family], tuple(best.values()), self._best[family].checkpoint))
            risks.append(max(found, key=lambda one: one.risk))
        return tuple(risks)

    def _against_best(self, plays: Sequence[TaskPlay]) -> list[tuple[str, float]]:
        """Differences to the best head so far; to head where that is the best, or where the best was not
        played on a task."""
        differences = []
        for play in plays:
            baseline = self._best.get(play.family)
            known = baseline.tallies.get(play.task) if baseline else None
            differences.append((play.family, play.rate - known.rate if known else play.difference))
        return differences

    def _risk(self, sums: FamilySums, everything: Sequence[FamilySums], against: str) -> FamilyRisk:
        margin = self._rule.margin(sums.family)
        if sums.family in self._rule.critical:
            return critical_risk(sums, margin, against)
        return family_risk(sums, everything, margin, against)
