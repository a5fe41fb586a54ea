"""Episodes that were played here, sent to the platform that is found: it keeps them as `client_graded`."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import Unavailable, UpcycleError
from upcycle.external.evaluating import ExternalEpisode
from upcycle.images import text_of_content
from upcycle.platform import Platform, PlatformNotFound, find_addresses
from upcycle.tasks import Taskset
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1 import service_pb2, trajectory_pb2
    from upcycle.playing.episode import PlayedEpisode
    from upcycle.rewards import SubScore
    from upcycle.states import StateEntry

_CONCURRENCY: Final = 8
_CALL_S: Final = 30.0
_MAX_DETAIL_CHARS: Final = 8_000


@dataclass(frozen=True, slots=True)
class PlayedEvaluation:
    """What was played here. agent: its name; group: attempts at each task."""

    run_id: str
    agent: str
    taskset: Taskset
    group: int
    episodes: Sequence[ExternalEpisode]


@dataclass(frozen=True, slots=True)
class SentTrajectories:
    """ids: of the trajectories that the platform keeps now, by episode id. left: how many graded episodes it
    does not keep, by the reason."""

    ids: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def why_left(self) -> str:
        """What to say of those that the platform does not keep; "" where it keeps all."""
        return "; ".join(
            f"{amount(count, 'episode is', 'episodes are')} not sent to the platform: {why}"
            for why, count in self.left.items()
        )


async def send_to_found(evaluation: PlayedEvaluation) -> SentTrajectories | None:
    """Send the episodes that have a reward to the platform that is found; None: none is. Raises nothing that
    the platform, or its absence, is the cause of."""
    try:
        addresses = find_addresses()
    except PlatformNotFound:
        return None
    sender = _Sender(evaluation)
    try:
        async with Platform(addresses) as platform:
            await sender.send_all(platform)
    except UpcycleError as error:
        sender.leave_the_rest(str(error))
    return SentTrajectories(sender.ids, dict(sender.left))


class _Sender:
    def __init__(self, evaluation: PlayedEvaluation) -> None:
        self.ids: dict[str, str] = {}
        self.left = Counter[str]()
        self._evaluation = evaluation
        self._positions = {task.slug: at for at, task in enumerate(evaluation.taskset)}
        self._graded = [one for one in evaluation.episodes if not one.run.is_error]
        self._gone = ""

    async def send_all(self, platform: Platform) -> None:
        """One call an episode, so that one that is refused holds up no other."""
        slots = asyncio.Semaphore(_CONCURRENCY)

        async def one(played: ExternalEpisode) -> None:
            async with slots:
                await self._send(platform, played)

        await asyncio.gather(*map(one, self._graded))

    def leave_the_rest(self, why: str) -> None:
        """Count those that were neither sent nor refused."""
        if rest := len(self._graded) - len(self.ids) - self.left.total():
            self.left[why] += rest

    async def _send(self, platform: Platform, played: ExternalEpisode) -> None:
        from upcycle.api.trajectory.v1.service_pb2 import ImportTrajectoriesRequest
        from upcycle.rpc import RemoteError, remote_errors

        if self._gone:  # asked once: the others would wait as long
            self.left[self._gone] += 1
            return
        try:
            message = self._message(played)
        except (TypeError, ValueError) as error:  # no message can hold it, such as half an emoji of a tool
            self.left[f"{played.run.task_slug}: {type(error).__name__}: {str(error)[:200]}"] += 1
            return
        request = ImportTrajectoriesRequest(
            run_id=self._evaluation.run_id, agent=self._evaluation.agent, trajectories=[message]
        )
        try:
            with remote_errors():
                reply = await platform.trajectories.ImportTrajectories(request, timeout=_CALL_S)
        except Unavailable as error:
            self._gone = str(error)
            self.left[self._gone] += 1
        except RemoteError as error:
            self.left[error.message or str(error)] += 1
        else:
            self.ids[played.run.episode_id] = reply.trajectory_ids[0]

    def _message(self, sent: ExternalEpisode) -> "service_pb2.ClientTrajectory":
        from upcycle.api.trajectory.v1 import service_pb2, trajectory_pb2
        from upcycle.wire import SPLITS

        run, played = sent.run, sent.played
        failure = None
        if run.policy_failure:
            detail = run.failure_detail[:_MAX_DETAIL_CHARS]
            failure = trajectory_pb2.PolicyFailure(kind=run.policy_failure, detail=detail)
        return service_pb2.ClientTrajectory(
            task_position=self._positions[run.task_slug],
            attempt=sent.attempt,
            attempts=self._evaluation.group,
            task_slug=run.task_slug,
            task_digest=played.task.digest,
            family=played.task.family,
            split=SPLITS[self._evaluation.taskset.split],
            body=body_of(played),
            reward=run.reward,
            success=run.success,
            subscores=[_subscore(one) for one in played.result.subscores] if played.result else [],
            failure=failure,
            turn_rewards=played.result.turn_rewards if played.result else (),
        )


def body_of(played: "PlayedEpisode") -> "trajectory_pb2.TrajectoryBody":
    """What was said, without tokens: a model of others tells none."""
    from upcycle.api.trajectory.v1 import trajectory_pb2
    from upcycle.train.inputs import message_to_wire

    stop = f"STOP_REASON_{str(played.ending.stop_reason).upper()}" if played.ending else "STOP_REASON_FAILED"
    return trajectory_pb2.TrajectoryBody(
        prompt=[
            message_to_wire(played.task.slug, at, {**one, "content": text_of_content(one.get("content"))})
            for at, one in enumerate(played.prompt)
        ],
        turns=[_turn(at, one) for at, one in enumerate(played.turns)],
        stop_reason=trajectory_pb2.StopReason.Value(stop),
        answer=played.ending.answer if played.ending else "",
        tools_json=json.dumps(list(played.tools)) if played.tools else "",
        first_state=_state(played.first_state),
        last_state=_state(played.last_state),
    )


def _turn(index: int, taken: Any) -> "trajectory_pb2.Turn":
    """taken: a TakenTurn. The ids of its calls are those of the conversation."""
    from upcycle.api.trajectory.v1 import trajectory_pb2
    from upcycle.harness.chat import call_id

    calls = [
        trajectory_pb2.ToolCall(
            call_id=call_id(index, at), name=call.name, arguments_json=json.dumps(call.arguments)
        )
        for at, call in enumerate(taken.said.tool_calls)
    ]
    results = [
        trajectory_pb2.ToolResult(
            call_id=call_id(index, at),
            content=one.content,
            is_error=one.is_error,
            duration_s=one.duration_s,
            state=_state(one.state),
        )
        for at, one in enumerate(taken.outcomes)
    ]
    return trajectory_pb2.Turn(
        text=taken.said.text,
        reasoning=taken.said.reasoning,
        tool_calls=calls,
        tool_results=results,
        parse_error=taken.said.parse_error or "",
        restarts_context=taken.restarts_context,
    )


def _state(state: "StateEntry | None") -> "trajectory_pb2.StateSnapshot | None":
    from upcycle.api.trajectory.v1 import trajectory_pb2

    if state is None:
        return None
    return trajectory_pb2.StateSnapshot(value_json=state.value, patch_json=state.patch, note=state.note)


def _subscore(one: "SubScore") -> "trajectory_pb2.Subscore":
    from upcycle.api.trajectory.v1 import trajectory_pb2

    return trajectory_pb2.Subscore(
        name=one.name,
        weight=one.weight,
        value=one.value,
        info=json.dumps(dict(one.info)) if one.info else "",
        children=[_subscore(child) for child in one.children],
    )
