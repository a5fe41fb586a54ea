"""Trajectories that a client played and graded: stored whole or not at all, listed where they are asked for,
counted in no ledger."""

import math
from collections.abc import Callable

import grpc
import grpc.aio
import pytest
from tests.services.trajectory_store import events
from tests.services.trajectory_store.running_store import Store
from tests.support.waiting import until

from trajectory_store.wire.imports import MAX_BYTES, MAX_GRADE_BYTES, MAX_TRAJECTORIES
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory

RUN = "here-0123456789ab"
OF_CLIENTS = pb.TrajectoryFilter(state=trajectory.LEDGER_STATE_CLIENT_GRADED)
Change = Callable[[pb.ClientTrajectory], object]


def said(position: int = 0, *, reward: float = 0.75, text: str = "OOM") -> pb.ClientTrajectory:
    """The only attempt at a task: a tool call, its result, an answer."""
    call = trajectory.ToolCall(call_id="c0", name="search_logs", arguments_json='{"q": "oom"}')
    result = trajectory.ToolResult(call_id="c0", content="oom killed")
    body = trajectory.TrajectoryBody(
        prompt=[trajectory.Message(role="user", content="Why is checkout down?")],
        turns=[trajectory.Turn(tool_calls=[call], tool_results=[result]), trajectory.Turn(text=text)],
        stop_reason=trajectory.STOP_REASON_ANSWERED,
        answer=text,
        tools_json='[{"type": "function"}]',
    )
    return pb.ClientTrajectory(
        task_position=position,
        attempts=1,
        task_slug=f"task-{position}",
        task_digest="d" * 64,
        split=common_pb2.SPLIT_UNASSIGNED,
        body=body,
        reward=reward,
        subscores=[trajectory.Subscore(name="service", value=0.5, weight=1)],
        turn_rewards=[1.0, 0.5],
    )


def importing(
    *given: pb.ClientTrajectory, run: str = RUN, agent: str = "claude#x"
) -> pb.ImportTrajectoriesRequest:
    return pb.ImportTrajectoriesRequest(run_id=run, agent=agent, trajectories=given)


async def listed(store: Store, wanted: pb.TrajectoryFilter = OF_CLIENTS) -> list[str]:
    found = await store.api.ListTrajectories(pb.ListTrajectoriesRequest(filter=wanted))
    return sorted(one.episode.trajectory_id for one in found.trajectories)


async def refused(store: Store, request: pb.ImportTrajectoriesRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.api.ImportTrajectories(request)
    return error.value.code(), error.value.details() or ""


async def test_what_a_client_graded_is_shown_where_it_is_asked_for_and_counted_nowhere(store: Store) -> None:
    ids = list((await store.api.ImportTrajectories(importing(said(0), said(1)))).trajectory_ids)
    assert ids == [f"traj-{RUN}-g0000{position}-e000-a0" for position in (0, 1)]
    found = await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=ids[0]))
    assert found.summary.ledger.state == trajectory.LEDGER_STATE_CLIENT_GRADED
    assert (found.summary.graded, found.summary.reward, found.summary.success) == (True, 0.75, False)
    assert [one.name for one in found.summary.subscores] == ["service"]
    assert list(found.summary.turn_rewards) == [1.0, 0.5]
    assert (found.summary.episode.model, found.summary.episode.task_slug) == ("claude#x", "task-0")
    assert found.summary.sampled_by.oldest == found.summary.sampled_by.newest == -1
    assert (found.body.turns, found.body.sampled_by) == (said(0).body.turns, found.summary.sampled_by)
    assert found.body.episode == found.summary.episode
    assert await listed(store) == ids
    assert (
        await listed(store, pb.TrajectoryFilter())
        == await listed(store, pb.TrajectoryFilter(run_id=RUN))
        == []
    )
    assert (await store.ledger("")) == (await store.ledger(RUN)) == pb.GetLedgerResponse()


async def test_states_and_reasoning_of_a_clients_episode_are_kept(store: Store) -> None:
    given = said(0)
    given.body.first_state.value_json = '{"open": 1}'
    given.body.turns[0].tool_results[0].state.patch_json = '[{"op": "replace", "path": "/open", "value": 0}]'
    given.body.turns[1].reasoning = "the log says so"
    given.body.last_state.note = "it has no state any more"
    request = importing(given, run="here-1123456789ab")
    (name,) = (await store.api.ImportTrajectories(request)).trajectory_ids
    body = (await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=name))).body
    assert (body.first_state, body.last_state) == (given.body.first_state, given.body.last_state)
    assert body.turns == given.body.turns


async def test_a_repeated_import_changes_nothing_and_another_one_of_its_ids_is_refused(store: Store) -> None:
    first = await store.api.ImportTrajectories(importing(said(0), said(1)))
    assert await store.api.ImportTrajectories(importing(said(0), said(1))) == first
    for other in (said(1, reward=1.0), said(1, text="disk full")):
        code, why = await refused(store, importing(said(2), other))
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert f"{RUN}-g00001-e000-a0" in why
        assert "written once" in why
    assert await listed(store) == list(first.trajectory_ids)
    found = await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=first.trajectory_ids[1]))
    assert (found.body.answer, found.summary.reward) == ("OOM", 0.75)


async def test_a_body_of_another_import_is_never_replaced(store: Store) -> None:
    """Two imports of one id at the same time: the second finds no row yet, and the first one's body."""
    run = "here-ba9876543210"
    key = f"default/trajectories/{run}/{run}-g00000-e000-a0.pb.zst"
    await store.blobs.put(key, b"of another import")
    code, why = await refused(store, importing(said(0), run=run))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "another body" in why
    assert (await store.blobs.read(key), await listed(store)) == (b"of another import", [])


def _of_tokens(one: pb.ClientTrajectory) -> None:
    one.body.turns[1].sampled_ids.append(7)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: setattr(one, "reward", 1.5), "reward is 1.5, outside [0, 1]"),
        (lambda one: setattr(one, "reward", -0.1), "reward is -0.1, outside [0, 1]"),
        (lambda one: setattr(one, "reward", math.nan), "reward is nan, outside [0, 1]"),
        (lambda one: setattr(one.subscores[0], "value", 2.0), "subscore 'service' is 2, outside [0, 1]"),
        (lambda one: one.turn_rewards.append(1.0), "turn_rewards has 3 numbers, the episode 2 turns"),
        (lambda one: one.turn_rewards.__setitem__(1, 1.5), "turn_rewards[1] is 1.5, outside [0, 1]"),
        (lambda one: setattr(one.subscores[0], "weight", math.nan), "weight of subscore 'service' is nan"),
        (lambda one: setattr(one.subscores[0], "info", "x" * MAX_GRADE_BYTES), f"limit {MAX_GRADE_BYTES}"),
        (lambda one: setattr(one.failure, "detail", "x" * MAX_GRADE_BYTES), f"limit {MAX_GRADE_BYTES}"),
        (lambda one: setattr(one.body, "answer", "x" * MAX_BYTES), f"bytes, limit {MAX_BYTES}"),
        (lambda one: setattr(one, "task_position", 0), "attempt 0 of 'task-1' twice: traj-"),
        (lambda one: setattr(one, "attempt", 1), "attempt is 1 of 1; attempts count from 0"),
        (lambda one: setattr(one, "task_digest", "abc"), "task_digest 'abc' is not a sha256"),
        (lambda one: setattr(one, "task_slug", ""), "task_slug has 0 characters"),
        (lambda one: setattr(one, "split", 0), "split is 0, expected one of"),
        (lambda one: one.body.ClearField("prompt"), "its body has no prompt"),
        (lambda one: setattr(one.body, "tools_json", "{}"), "tools_json is not a list of objects"),
        (lambda one: setattr(one.body, "tools_json", "["), "tools_json is not JSON"),
        (lambda one: setattr(one.body, "tools_json", "[" * 500_000), "tools_json is not JSON"),
        (lambda one: setattr(one.body.started_at, "seconds", 10**15), "body.started_at is no time"),
        (lambda one: setattr(one.body.ended_at, "nanos", -1), "body.ended_at is no time"),
        (lambda one: setattr(one.body.episode, "run_id", "run-1"), "its body names an episode"),
        (_of_tokens, "turn 1 has sampled_ids: what a client graded is kept as messages"),
    ],
)
async def test_an_import_with_one_wrong_trajectory_stores_nothing(
    store: Store, change: Change, why: str
) -> None:
    wrong = said(1)
    change(wrong)
    code, details = await refused(store, importing(said(0), wrong))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert why in details
    assert await listed(store) == []


async def test_an_import_says_which_evaluation_and_agent_it_is_of(store: Store) -> None:
    for request, why in (
        (importing(said(), run="run-0123456789ab"), "run_id is 'run-0123456789ab'"),
        (importing(said(), run=f"{RUN}-g00001-e000-a0"), "of an evaluation that a client played it is"),
        (importing(said(), agent=""), "agent cannot be used"),
        (importing(said(), agent="x" * 300), "agent cannot be used"),
        (importing(), "the import holds 0 trajectories"),
        (importing(*map(said, range(MAX_TRAJECTORIES + 1))), f"give 1 to {MAX_TRAJECTORIES}"),
    ):
        code, details = await refused(store, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert why in details
    assert await listed(store) == []


async def test_steps_that_trained_a_clients_trajectory_count_in_no_ledger(store: Store) -> None:
    """Two interactive steps on one are no trajectory that trained twice; one that is gone adds no row."""
    (kept,) = (await store.api.ImportTrajectories(importing(said()))).trajectory_ids
    gone = kept.replace("g00000", "g00007")
    for step in (3, 4):
        completed = events.stepped([], step, by="interactive-incident")
        completed.trajectory_ids.extend([kept, gone])
        await store.publish(completed)
    await store.publish(events.requested(0))

    async def is_read() -> bool:
        return (await store.ledger("")).requested == 1

    await until(is_read)
    ledger = await store.ledger("")
    assert (dict(ledger.by_state), ledger.trained_twice, ledger.conflicts) == ({"requested": 1}, 0, 0)
    assert await listed(store) == [kept]
