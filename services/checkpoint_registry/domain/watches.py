"""What head and its predecessor did side by side since head moved. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from checkpoint_registry.domain.evidence import SamplingProfile
from checkpoint_registry.domain.jobs import GateJob, GateSpec, RequestState
from checkpoint_registry.domain.models import Checkpoint
from checkpoint_registry.domain.runs import EpisodeOutcome, TrainingLoad
from upcycle.gate.watch import Pair, Play, Trigger, Watch

CHANGED_ALPHA: Final = 0.0009
"""Error of all bets that begin as the environment changes, which are any number: with that of the bet over
all pairs it stays below 1 %."""

ENGINE_SHARE: Final = 0.1
"""Of the seconds of engines that training took: the most that a watch takes beside it."""
FEWEST_PAIRS: Final = 5
"""Of a run beside training: below that the fixed cost of a run is not worth it."""


@dataclass(frozen=True, slots=True)
class WatchedHead:
    """A head, the head before it, and the gate of their model, on whose tasks they play."""

    job: GateJob
    gate: GateSpec
    profile: SamplingProfile
    head: Checkpoint
    predecessor: Checkpoint
    revision: int  # of head


@dataclass(frozen=True, slots=True)
class WatchRun:
    """One run of pairs of the head of one revision and its predecessor."""

    request_id: str
    model: str
    head_revision: int
    number: int  # 0 first
    run_id: str
    state: RequestState
    detail: str
    updated_at: datetime
    pairs: tuple[Pair, ...] = ()
    beside: tuple[str, ...] = ()  # training runs that sampled when it was ordered
    source_digest: str = ""  # of the code that judged it; "": not known, or it has no results


@dataclass(frozen=True, slots=True)
class WatchState:
    """What the pairs of a head say by now. whole: over all of them. changed: over those that the newest
    source of the environment judged; None where that is the first one. What a head won before its environment
    changed says nothing of it after that, and must not outweigh what it loses."""

    whole: Watch
    changed: Watch | None = None
    source_digest: str = ""

    @property
    def lost(self) -> Watch | None:
        """The watch by which head goes back; None: it stays."""
        return next((one for one in (self.whole, self.changed) if one is not None and one.is_lost), None)

    @property
    def newest(self) -> Watch:
        """Of the environment as it is."""
        return self.whole if self.changed is None else self.changed


def pairs_of(
    results: Iterable[EpisodeOutcome], traps: Iterable[EpisodeOutcome] = (), *, by_shadow: bool = False
) -> tuple[Pair, ...]:
    """In the order of the groups. Member 0 is head's, member 1 its predecessor's. A pair of which a side was
    lost to infrastructure is left out. Of traps, tasks without a solution, it counts alone who passed them.
    by_shadow: the shadow graders say what a success is, and what they did not grade is lost."""
    seen = [_by_shadow(one) for one in results] if by_shadow else results
    played = [Pair(head.family, _play(head), _play(before)) for head, before in _paired(seen)]
    return (*played, *(Pair("", _at_trap(head), _at_trap(before)) for head, before in _paired(traps)))


def _paired(results: Iterable[EpisodeOutcome]) -> Iterator[tuple[EpisodeOutcome, EpisodeOutcome]]:
    groups: dict[str, dict[int, EpisodeOutcome]] = {}
    for result in results:
        groups.setdefault(result.group_id, {})[result.member] = result
    for _, members in sorted(groups.items()):
        head, before = members.get(0), members.get(1)
        if head is not None and before is not None and head.graded and before.graded:
            yield head, before


def watch_of(families: Sequence[str], runs: Sequence[WatchRun]) -> WatchState:
    """After all pairs so far."""
    whole = _after(Watch.of(families), families, runs)
    judged = [run for run in runs if run.pairs and run.source_digest]
    newest = judged[-1].source_digest if judged else ""
    change = list(dict.fromkeys(run.source_digest for run in judged)).index(newest) if judged else 0
    if not change:
        return WatchState(whole, source_digest=newest)
    # 1 / (n · (n + 1)) add up to 1 over all changes.
    begun = Watch.of(families, CHANGED_ALPHA / (change * (change + 1)))
    of_newest = [run for run in judged if run.source_digest == newest]
    return WatchState(whole, _after(begun, families, of_newest), newest)


def _after(watch: Watch, families: Sequence[str], runs: Iterable[WatchRun]) -> Watch:
    known = {*families, ""}
    for run in runs:
        for pair in run.pairs:
            if pair.family in known:
                watch = watch.after(pair)
    return watch


def pairs_under(runs: Iterable[WatchRun], source_digest: str) -> int:
    """Pairs that say something of an environment as it lies there now. source_digest: "" where that is not
    known, so that all pairs do."""
    fitting = [run for run in runs if not source_digest or run.source_digest in ("", source_digest)]
    return sum(len(run.pairs) for run in fitting)


def pairs_beside(trainings: Sequence[TrainingLoad], spent_s: float, batch: int) -> int:
    """Pairs that a watch may order now: `batch`; while training goes on, what stays within a tenth of the
    seconds of engines that training took until now. spent_s: of the watches of the model since it began."""
    if not trainings:
        return batch
    taken_s, num_episodes = sum(one.engine_s for one in trainings), sum(one.num_episodes for one in trainings)
    if not taken_s or not num_episodes:
        return 0
    pair_s = 2 * taken_s / num_episodes
    fitting = min(batch, int((ENGINE_SHARE * taken_s - spent_s) / pair_s))
    return fitting if fitting >= min(FEWEST_PAIRS, batch) else 0


def why_none_beside(trainings: Sequence[TrainingLoad], spent_s: float) -> str:
    """Why a watch may order no pairs beside these training runs, with the figures."""
    runs = ", ".join(one.run_id for one in trainings)
    taken_s, num_episodes = sum(one.engine_s for one in trainings), sum(one.num_episodes for one in trainings)
    if not taken_s or not num_episodes:
        return (
            f"training run {runs} reports no seconds of engines (episodes ended: {num_episodes}), and a "
            f"watch takes {ENGINE_SHARE:.0%} of them at most: it waits for them, or for the run's end"
        )
    return (
        f"training run {runs} took {taken_s:.1f} s of engines and the watch {spent_s:.1f} s of the "
        f"{ENGINE_SHARE * taken_s:.1f} s that it may: {FEWEST_PAIRS} pairs of about "
        f"{2 * taken_s / num_episodes:.1f} s do not fit yet"
    )


def is_within(now: datetime, begun_at: datetime, pause: timedelta) -> bool:
    """Whether a pause goes on. One that begins later than now ended when the clock was set back."""
    return begun_at <= now < begun_at + pause


def newcomers(run: WatchRun, trainings: Iterable[TrainingLoad]) -> list[str]:
    """Training runs that did not sample when this run of a watch was ordered: they do not wait behind it."""
    return [one.run_id for one in trainings if one.run_id not in run.beside]


def _by_shadow(result: EpisodeOutcome) -> EpisodeOutcome:
    if not result.graded or result.failure_kind:
        return result
    return replace(result, graded=result.shadow is not None, success=bool(result.shadow))


def _at_trap(result: EpisodeOutcome) -> Play:
    return Play(False, frozenset([Trigger.HACKED] if result.success else []))


def _play(result: EpisodeOutcome) -> Play:
    found = [Trigger.FAILED] if result.failure_kind else []
    found += [Trigger.UNREADABLE] if result.failure_kind == "policy_unreadable" else []
    return Play(result.success, frozenset(found))
