"""Following a training run from outside: the planner's view of it, the trainer's steps, the gate's verdicts.

The picture is put together from three services. One of them may be away: the others go on, and it is named.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from upcycle.cli import watching
from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import Checkpoint
    from upcycle.api.taskset.v1.taskset_pb2 import Run
    from upcycle.api.training.v1.training_pb2 import StepPoint, TrainingAlarm, TrainingSession
    from upcycle.platform import Platform

POLL_S: Final = 0.5
"""Between two looks at the trainer."""
HISTORY: Final = 512
"""Steps of the past that are asked for."""
_LAST_LOOK_S: Final = 5.0
_ASK_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class RunChanged:
    """The planner's view of the run is another one."""

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
    """Something that a person should look at."""

    alarm: "TrainingAlarm"


@dataclass(frozen=True, slots=True)
class AlarmCleared:
    """It went away."""

    kind: str


@dataclass(frozen=True, slots=True)
class PeerAway:
    """A service does not answer, or answers again."""

    peer: str
    is_away: bool


Event = RunChanged | Stepped | Judged | AlarmRaised | AlarmCleared | PeerAway
Show = Callable[["Picture", Event], None]


@dataclass(slots=True)
class Picture:
    """Everything known of the run so far. points: by step; verdicts: by checkpoint id."""

    run: "Run"
    session: "TrainingSession | None" = None
    points: "dict[int, StepPoint]" = field(default_factory=dict)
    alarms: "dict[str, TrainingAlarm]" = field(default_factory=dict)
    verdicts: "dict[str, Checkpoint]" = field(default_factory=dict)
    away: set[str] = field(default_factory=set)

    @property
    def last_step(self) -> int:
        """Newest step that is known here."""
        return max(self.points, default=0)


async def attend(platform: "Platform", run_id: str, show: Show, *, timeout_s: float) -> "Run":
    """Show everything that happens to a training run until it is over; the run in its final state.

    Raises TimeoutError, and what the planner refuses.
    """
    picture: Picture | None = None
    watcher: asyncio.Task[None] | None = None
    try:
        async for run in watching.watch(platform, run_id, timeout_s=timeout_s):
            if picture is None:
                picture = Picture(run)
                watcher = asyncio.create_task(_poll_for_ever(platform, picture, show), name=f"poll/{run_id}")
            picture.run = run
            show(picture, RunChanged(run))
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
    if picture is None:
        raise UpcycleError(f"run {run_id} sent no state", "is scenario_runner healthy? see `upcycle doctor`")
    await _look_until_it_ended(platform, picture, show)
    return picture.run


async def _poll_for_ever(platform: "Platform", picture: Picture, show: Show) -> None:
    while True:
        await _poll(platform, picture, show)
        await asyncio.sleep(POLL_S)


async def _look_until_it_ended(platform: "Platform", picture: Picture, show: Show) -> None:
    """The planner may end a run a moment before the trainer shows its last steps."""
    from upcycle.api.training.v1.training_pb2 import SESSION_STATE_FAILED, SESSION_STATE_FINISHED

    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_LOOK_S):
            while True:
                await _poll(platform, picture, show)
                state = picture.session.state if picture.session is not None else None
                if picture.away or state in (SESSION_STATE_FAILED, SESSION_STATE_FINISHED):
                    return
                await asyncio.sleep(POLL_S)


async def _poll(platform: "Platform", picture: Picture, show: Show) -> None:
    for event in [event async for event in _news(platform, picture)]:
        _take_in(picture, event)
        show(picture, event)


async def _news(platform: "Platform", picture: Picture) -> AsyncIterator[Event]:
    async for event in _asked(picture, "trainer", _session_news(platform, picture)):
        yield event
    async for event in _asked(picture, "registry", _verdicts(platform, picture)):
        yield event


async def _asked(picture: Picture, peer: str, news: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The news of one peer, and whether it answers."""
    import grpc

    try:
        async for event in news:
            yield event
    except grpc.aio.AioRpcError as error:
        is_known_to_live = error.code() is grpc.StatusCode.NOT_FOUND  # it has not heard of the run yet
        if not is_known_to_live and peer not in picture.away:
            yield PeerAway(peer, is_away=True)
    else:
        if peer in picture.away:
            yield PeerAway(peer, is_away=False)


def _take_in(picture: Picture, event: Event) -> None:
    match event:
        case Stepped(point):
            picture.points[point.step] = point
        case Judged(checkpoint):
            picture.verdicts[checkpoint.checkpoint_id] = checkpoint
        case AlarmRaised(alarm):
            picture.alarms[alarm.kind] = alarm
        case AlarmCleared(kind):
            picture.alarms.pop(kind, None)
        case PeerAway(peer, is_away):
            (picture.away.add if is_away else picture.away.discard)(peer)
        case RunChanged():
            return


async def _session_news(platform: "Platform", picture: Picture) -> AsyncIterator[Event]:
    from upcycle.api.training.v1.service_pb2 import GetSessionRequest

    run_id = picture.run.run_id
    request = GetSessionRequest(run_id=run_id, num_steps=HISTORY if not picture.points else 64)
    answer = await platform.training.GetSession(request, timeout=_ASK_S)
    picture.session = answer.session
    for point in answer.steps:
        if point.step not in picture.points:
            yield Stepped(point)
    raised = {alarm.kind: alarm for alarm in answer.session.alarms}
    for kind in raised.keys() - picture.alarms.keys():
        yield AlarmRaised(raised[kind])
    for kind in picture.alarms.keys() - raised.keys():
        yield AlarmCleared(kind)


async def _verdicts(platform: "Platform", picture: Picture) -> AsyncIterator[Event]:
    from upcycle.api.registry.v1.registry_pb2 import CHECKPOINT_STATE_HELD, CHECKPOINT_STATE_PROMOTED
    from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest

    model = picture.run.spec.policy.model
    answer = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=model), timeout=_ASK_S)
    for checkpoint in answer.checkpoints:
        is_judged = checkpoint.state in (CHECKPOINT_STATE_PROMOTED, CHECKPOINT_STATE_HELD)
        is_new = checkpoint.checkpoint_id not in picture.verdicts
        if is_judged and is_new and checkpoint.run_id == picture.run.run_id:
            yield Judged(checkpoint)
