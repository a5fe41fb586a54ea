"""What head and its predecessor did side by side since head moved. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from checkpoint_registry.domain.evidence import SamplingProfile
from checkpoint_registry.domain.jobs import GateJob, GateSpec, RequestState
from checkpoint_registry.domain.models import Checkpoint
from checkpoint_registry.domain.runs import EpisodeOutcome
from upcycle.gate.watch import Pair, Play, Trigger, Watch


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


def pairs_of(results: Iterable[EpisodeOutcome]) -> tuple[Pair, ...]:
    """In the order of the groups. Member 0 is head's, member 1 its predecessor's. A pair of which a side was
    lost to infrastructure is left out."""
    groups: dict[str, dict[int, EpisodeOutcome]] = {}
    for result in results:
        groups.setdefault(result.group_id, {})[result.member] = result
    pairs = []
    for _, members in sorted(groups.items()):
        head, before = members.get(0), members.get(1)
        if head is not None and before is not None and head.graded and before.graded:
            pairs.append(Pair(head.family, _play(head), _play(before)))
    return tuple(pairs)


def watch_of(families: Sequence[str], runs: Iterable[WatchRun]) -> Watch:
    """After all pairs so far."""
    watch = Watch.of(families)
    known = set(families)
    for run in runs:
        for pair in run.pairs:
            if pair.family in known:
                watch = watch.after(pair)
    return watch


def _play(result: EpisodeOutcome) -> Play:
    found = [Trigger.FAILED] if result.failure_kind else []
    found += [Trigger.UNREADABLE] if result.failure_kind == "policy_unreadable" else []
    return Play(result.success, frozenset(found))
