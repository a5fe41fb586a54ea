"""Follows a training run: its state from the planner, its steps from the trainer, verdicts from the registry.

While one of them does not answer, the view names it and goes on showing what the others report.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from upcycle.errors import UpcycleError
from upcycle.run_client import watch_run

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import Checkpoint
    from upcycle.api.taskset.v1.taskset_pb2 import Run, TrackedRate
    from upcycle.api.training.v1.training_pb2 import StepPoint, TrainingAlarm, TrainingSession
    from upcycle.api.trajectory.v1.service_pb2 import RewardAlarm
    from upcycle.platform import Platform

    AnyAlarm = TrainingAlarm | RewardAlarm

POLL_S: Final = 0.5
"""Between two requests to the trainer."""
HISTORY: Final = 512
"""So many past steps are asked for at first."""
_LAST_LOOK_S: Final = 5.0
_ASK_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class RunChanged:
    """The planner reports another state or other counts of the run."""

    run: "Run"


@dataclass(frozen=True, slots=True)
class Stepped:
    """The trainer finished a step."""

    point: "StepPoint"


@dataclass(frozen=True, slots=True)
class Judged:
    """A checkpoint of this run was promoted or held."""

    checkpoint: "Checkpoint"


@dataclass(frozen=True, slots=True)
class AlarmRaised:
    """The trainer raised an alarm, or a monitor of reward hacks."""

    alarm: "AnyAlarm"


@dataclass(frozen=True, slots=True)
class AlarmCleared:
    """An alarm is over."""

    kind: str


@dataclass(frozen=True, slots=True)
class PeerAway:
    """A service does not answer, or answers again."""

    peer: str
    is_away: bool


@dataclass(frozen=True, slots=True)
class VersionMeasured:
    """A version was measured on a set that the run is followed on."""

    rate: "TrackedRate"


@dataclass(frozen=True, slots=True)
class RewardAlone:
    """The training reward rises without a set that the run is followed on."""

    text: str


Event = RunChanged | Stepped | Judged | AlarmRaised | AlarmCleared | PeerAway | VersionMeasured | RewardAlone
ShowEvent = Callable[["TrainingProgress", Event], None]


@dataclass(slots=True)
class TrainingProgress:
    """Everything known of the run so far. points: by step; verdicts: by checkpoint id; away: services that do
    not answer."""

    run: "Run"
    session: "TrainingSession | None" = None
    points: "dict[int, StepPoint]" = field(default_factory=dict)
    alarms: "dict[str, AnyAlarm]" = field(default_factory=dict)
    verdicts: "dict[str, Checkpoint]" = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    measured: set[tuple[str, int]] = field(default_factory=set)
    alone: tuple[str, ...] = ()

    @property
    def last_step(self) -> int:
        """Newest step that was received."""
        return max(self.points, default=0)


async def follow_training(platform: "Platform", run_id: str, show: ShowEvent, *, timeout_s: float) -> "Run":
    """Show everything that happens to a training run until it is over; the run in its final state.

    Raises CallTimedOut when it is not over in time, and RemoteError for what the planner refuses.
    """
    progress: TrainingProgress | None = None
    watcher: asyncio.Task[None] | None = None
    try:
        async for run in watch_run(platform, run_id, timeout_s=timeout_s):
            if progress is None:
                progress = TrainingProgress(run)
                watcher = asyncio.create_task(
                    _poll_until_cancelled(platform, progress, show), name=f"poll/{run_id}"
                )
            progress.run = run
            show(progress, RunChanged(run))
            for event in tracking_events(progress):
                show(progress, event)
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
    if progress is None:
        raise UpcycleError(f"run {run_id} sent no state", "is scenario_runner healthy? see `upcycle doctor`")
    await _poll_until_session_ended(platform, progress, show)
    return progress.run


def tracking_events(progress: TrainingProgress) -> Iterator[Event]:
    """What the run's newest state says of the sets that it is followed on and was not shown; once."""
    for rate in progress.run.tracked:
        if rate.HasField("rate") and (rate.taskset, rate.step) not in progress.measured:
            progress.measured.add((rate.taskset, rate.step))
            yield VersionMeasured(rate)
    if len(progress.run.tracking_alarms) > len(progress.alone):
        yield from map(RewardAlone, progress.run.tracking_alarms)
    progress.alone = tuple(progress.run.tracking_alarms)


async def _poll_until_cancelled(platform: "Platform", progress: TrainingProgress, show: ShowEvent) -> None:
    while True:
        await _poll(platform, progress, show)
        await asyncio.sleep(POLL_S)


async def _poll_until_session_ended(
    platform: "Platform", progress: TrainingProgress, show: ShowEvent
) -> None:
    """The planner may end a run a moment before the trainer shows its last steps."""
    from upcycle.api.training.v1.training_pb2 import SESSION_STATE_FAILED, SESSION_STATE_FINISHED

    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_LOOK_S):
            while True:
                await _poll(platform, progress, show)
                state = progress.session.state if progress.session is not None else None
                if progress.away or state in (SESSION_STATE_FAILED, SESSION_STATE_FINISHED):
                    return
                await asyncio.sleep(POLL_S)


async def _poll(platform: "Platform", progress: TrainingProgress, show: ShowEvent) -> None:
    for event in [event async for event in _events(platform, progress)]:
        _apply(progress, event)
        show(progress, event)


async def _events(platform: "Platform", progress: TrainingProgress) -> AsyncIterator[Event]:
    async for event in _with_outage(progress, "trainer", _session_events(platform, progress)):
        yield event
    async for event in _with_outage(progress, "registry", _verdicts(platform, progress)):
        yield event
    async for event in _reward_alarms(platform, progress):
        yield event


async def _with_outage(
    progress: TrainingProgress, peer: str, events: AsyncIterator[Event]
) -> AsyncIterator[Event]:
    """The events of one service, and whether it answers."""
    import grpc

    try:
        async for event in events:
            yield event
    except grpc.aio.AioRpcError as error:
        is_known_to_live = error.code() is grpc.StatusCode.NOT_FOUND  # it does not know the run yet
        if not is_known_to_live and peer not in progress.away:
            yield PeerAway(peer, is_away=True)
    else:
        if peer in progress.away:
            yield PeerAway(peer, is_away=False)


def _apply(progress: TrainingProgress, event: Event) -> None:
    match event:
        case Stepped(point):
            progress.points[point.step] = point
        case Judged(checkpoint):
            progress.verdicts[checkpoint.checkpoint_id] = checkpoint
        case AlarmRaised(alarm):
            progress.alarms[alarm.kind] = alarm
        case AlarmCleared(kind):
            progress.alarms.pop(kind, None)
        case PeerAway(peer, is_away):
            (progress.away.add if is_away else progress.away.discard)(peer)
        case RunChanged() | VersionMeasured() | RewardAlone():
            return


async def _session_events(platform: "Platform", progress: TrainingProgress) -> AsyncIterator[Event]:
    from upcycle.api.training.v1.service_pb2 import GetSessionRequest
    from upcycle.api.training.v1.training_pb2 import TrainingAlarm

    run_id = progress.run.run_id
    request = GetSessionRequest(run_id=run_id, num_steps=HISTORY if not progress.points else 64)
    answer = await platform.training.GetSession(request, timeout=_ASK_S)
    progress.session = answer.session
    for point in answer.steps:
        if point.step not in progress.points:
            yield Stepped(point)
    known = {kind for kind, alarm in progress.alarms.items() if isinstance(alarm, TrainingAlarm)}
    for event in _alarm_events({alarm.kind: alarm for alarm in answer.session.alarms}, known):
        yield event


async def _reward_alarms(platform: "Platform", progress: TrainingProgress) -> AsyncIterator[Event]:
    """Of the monitors of reward hacks. A store that does not answer, or that has none, says nothing: what is
    raised stays as it was."""
    import grpc

    from upcycle.api.trajectory.v1.service_pb2 import ListAlarmsRequest, RewardAlarm

    request = ListAlarmsRequest(run_ids=[progress.run.run_id], only_open=True)
    try:
        answer = await platform.trajectories.ListAlarms(request, timeout=_ASK_S)
    except grpc.aio.AioRpcError:
        return
    known = {kind for kind, alarm in progress.alarms.items() if isinstance(alarm, RewardAlarm)}
    for event in _alarm_events({alarm.kind: alarm for alarm in answer.alarms}, known):
        yield event


def _alarm_events(raised: "Mapping[str, AnyAlarm]", known: set[str]) -> Iterator[Event]:
    for kind in raised.keys() - known:
        yield AlarmRaised(raised[kind])
    for kind in known - raised.keys():
        yield AlarmCleared(kind)


async def _verdicts(platform: "Platform", progress: TrainingProgress) -> AsyncIterator[Event]:
    from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest

    model = progress.run.spec.policy.model
    answer = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=model), timeout=_ASK_S)
    for checkpoint in answer.checkpoints:
        if is_new_verdict(progress, checkpoint):
            yield Judged(checkpoint)


def is_new_verdict(progress: TrainingProgress, checkpoint: "Checkpoint") -> bool:
    """Whether a checkpoint of the run was judged, and differently than it is known: one that waits for people
    becomes head later."""
    from upcycle.api.registry.v1.registry_pb2 import CHECKPOINT_STATE_HELD, CHECKPOINT_STATE_PROMOTED

    known = progress.verdicts.get(checkpoint.checkpoint_id)
    is_new = known is None or (known.state, known.reason) != (checkpoint.state, checkpoint.reason)
    is_judged = checkpoint.state in (CHECKPOINT_STATE_PROMOTED, CHECKPOINT_STATE_HELD)
    return is_judged and is_new and checkpoint.run_id == progress.run.run_id
