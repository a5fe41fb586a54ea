"""Trajectories that a client played and graded train as conversations: SFT of an interactive call alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.interactive.trainers import Library

from episodes.identity import Split
from grpc_edge import GrpcServer, Peer
from grpc_edge.access import OPEN
from grpo_trainer.domain.errors import HeldOutInput, InvalidInput
from grpo_trainer.interactive.conversations import ChatConversations
from grpo_trainer.interactive.deps import StoredTrajectory
from grpo_trainer.interactive.inputs import BatchOptions, ConversationInput, StoredInput, prepared_batch
from grpo_trainer.interactive.preparing import Preparer
from grpo_trainer.interactive.stored_trajectories import PlatformTrajectories
from grpo_trainer.interactive.wire import conversation_of_body
from grpo_trainer.learner.prepared import LossSpec, PreparedInput
from grpo_trainer.retrying import RetryUntilAvailable
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import service_pb2, trajectory_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)

POLICY = Path(__file__).parents[4] / "examples" / "incident" / "policy"
NAME = "traj-here-0123456789ab-g00000-e000-a0"
TOOL = {"type": "function", "function": {"name": "restart", "description": "", "parameters": {}}}
SAID = ConversationInput(
    name=NAME,
    messages=(
        {"role": "user", "content": "api is down"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "restart", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "ok"},
        {"role": "assistant", "content": "api"},
    ),
    tools=(TOOL,),
    weight=1.0,
    last_turn_only=False,
    task="d",
)
SFT = LossSpec("cross_entropy")


class Store(TrajectoryServiceServicer):
    """One trajectory that a client graded, as the trajectory store answers."""

    async def GetTrajectory(
        self, request: service_pb2.GetTrajectoryRequest, context: Any
    ) -> service_pb2.GetTrajectoryResponse:
        call = trajectory_pb2.ToolCall(call_id="c0", name="restart", arguments_json="{}")
        result = trajectory_pb2.ToolResult(call_id="c0", content="ok")
        episode = common_pb2.EpisodeIdentity(
            trajectory_id=NAME,
            run_id="here-0123456789ab",
            group_id="here-0123456789ab-g00000",
            split=common_pb2.SPLIT_UNASSIGNED,
            task_digest="d",
        )
        body = trajectory_pb2.TrajectoryBody(
            episode=episode,
            prompt=[trajectory_pb2.Message(role="user", content="api is down")],
            turns=[
                trajectory_pb2.Turn(tool_calls=[call], tool_results=[result]),
                trajectory_pb2.Turn(text="api"),
            ],
            tools_json='[{"type":"function","function":{"name":"restart","description":"","parameters":{}}}]',
        )
        ledger = trajectory_pb2.LedgerEntry(state=trajectory_pb2.LEDGER_STATE_CLIENT_GRADED)
        summary = trajectory_pb2.TrajectorySummary(episode=episode, graded=True, reward=0.75, ledger=ledger)
        return service_pb2.GetTrajectoryResponse(summary=summary, body=body)


async def prepared(
    *given: StoredInput | ConversationInput, loss: LossSpec = SFT, **known: Any
) -> list[PreparedInput]:
    library = Library({NAME: replace(StoredTrajectory(SAID, 0.75, "d", Split.UNASSIGNED), **known)})
    preparer = Preparer(library, ChatConversations(), RetryUntilAvailable())
    return await preparer.prepare(given, POLICY, loss)


async def test_the_store_gives_its_conversation_and_no_run_that_a_planner_knows() -> None:
    store = Store()  # type: ignore[abstract]  # the generated base answers UNIMPLEMENTED to the others
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_TrajectoryServiceServicer_to_server, store)
    await server.start()
    peer = Peer("trajectories", f"127.0.0.1:{server.port}")
    await peer.start()
    try:
        found = await PlatformTrajectories(peer, train_parse_errors=False).get(NAME)
    finally:
        await peer.stop()
        await server.stop()
    assert found == StoredTrajectory(SAID, 0.75, "d", Split.UNASSIGNED)


def test_turns_that_could_not_be_read_are_not_taught() -> None:
    body = trajectory_pb2.TrajectoryBody(
        episode=common_pb2.EpisodeIdentity(trajectory_id=NAME),
        turns=[trajectory_pb2.Turn(text="fine"), trajectory_pb2.Turn(text="{", parse_error="no JSON")],
    )
    with pytest.raises(InvalidInput, match=rf"{NAME}: turn 1 could not be read \(no JSON\)"):
        conversation_of_body(body)


async def test_it_is_learnt_as_its_conversation_would_be() -> None:
    stored, brought = await prepared(StoredInput(NAME), SAID)
    assert repr(stored.rows) == repr(brought.rows)  # log-probabilities are nan, which is not itself
    assert sum(stored.rows[0].trained) > 2
    assert (stored.trajectory_id, stored.reward, stored.task) == (NAME, 0.75, "d")
    assert (stored.run_id, stored.group_id, stored.oldest_version) == ("", "", None)
    assert prepared_batch([stored], BatchOptions(), SFT).group_size is None


async def test_it_is_compared_with_no_other_and_never_trains_a_held_out_task() -> None:
    ppo = LossSpec("ppo")
    given = await prepared(StoredInput(NAME), StoredInput(NAME), loss=ppo)
    with pytest.raises(
        InvalidInput, match=f"{NAME} has no sampling log-probabilities, which loss 'ppo' needs"
    ):
        prepared_batch(given, BatchOptions(), ppo)
    with pytest.raises(HeldOutInput, match="is of a held-out task"):
        await prepared(StoredInput(NAME), split=Split.HELD_OUT)
