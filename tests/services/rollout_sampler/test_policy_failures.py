"""Failures that the policy caused while it played: stored with its trajectory, which earns 0."""

from typing import Any

import grpc
import pytest
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import never, tool_call
from tests.support.waiting import until

from chat_format import ChatFormat, InvalidMessages
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.api.trajectory.v1.trajectory_pb2 import STOP_REASON_FAILED


async def played(bed: Testbed, script: Any, *, episode_timeout_s: float = 20.0, **changes: Any) -> Any:
    """The outcome of one episode whose tool answers."""
    bed.environments.tools = {"search_logs": lambda _: "a page"}
    await bed.engine(script)
    await bed.sampler(episode_timeout_s=episode_timeout_s, late_start_s=0.5)
    await bed.ask(bed.request(**changes))
    (fact,) = await bed.outcomes(1)
    return fact


def calls_once(prompt: str, _: Any) -> Any:
    """A call, then no second turn in time."""
    return never(prompt, _) if "<tool_response>" in prompt else tool_call("search_logs", page=1)


@pytest.mark.parametrize("kind", ["process_ended", "tool_timeout"])
async def test_a_call_that_ends_the_environment_is_stored_as_the_policys_failure(
    bed: Testbed, kind: str
) -> None:
    bed.environments.fail_calls, bed.environments.kind = [grpc.StatusCode.ABORTED], kind
    fact = await played(bed, calls_once)
    assert isinstance(fact, TrajectoryRecorded)
    body = await bed.body(fact)
    assert (fact.failure.kind, fact.failure.rule != "") == (kind, True)
    assert "as the test wants" in fact.failure.detail
    assert body.failure == fact.failure
    assert (body.stop_reason, fact.stop_reason, body.answer) == (STOP_REASON_FAILED, STOP_REASON_FAILED, "")
    (turn,) = body.turns  # with its tokens, so that it can train
    assert (len(turn.sampled_ids) > 0, len(turn.tool_calls), len(turn.tool_results)) == (True, 1, 0)
    assert fact.num_sampled_tokens == len(turn.sampled_ids)
    await until(lambda: bed.environments.closed == ["lease-0"])  # there is nothing to grade


@pytest.mark.parametrize("kind", ["external_failure", "environment_lost", None])
async def test_what_the_platform_or_the_outside_did_to_a_call_is_missing(
    bed: Testbed, kind: str | None
) -> None:
    bed.environments.fail_calls, bed.environments.kind = [grpc.StatusCode.ABORTED], kind
    fact = await played(bed, calls_once)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == (kind or "scenario_error")


async def test_a_run_may_ask_for_failures_to_be_missing(bed: Testbed) -> None:
    bed.environments.fail_calls, bed.environments.kind = [grpc.StatusCode.ABORTED], "process_ended"
    fact = await played(bed, calls_once, failures_are_missing=True)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "process_ended"


async def test_nothing_is_the_policys_before_its_first_token(bed: Testbed) -> None:
    bed.environments.refuse = (grpc.StatusCode.ABORTED, "as the test wants")
    bed.environments.kind = "process_ended"  # what an environment may say at its start
    fact = await played(bed, calls_once)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "process_ended"


@pytest.mark.parametrize(("tool_s", "is_policys"), [(100.0, True), (0.01, False)])
async def test_a_deadline_is_whose_that_spent_the_time(bed: Testbed, tool_s: float, is_policys: bool) -> None:
    bed.environments.tool_s = tool_s  # as the environment measured it
    fact = await played(bed, calls_once, episode_timeout_s=4.0)  # enough for its first turn
    assert isinstance(fact, TrajectoryRecorded if is_policys else EpisodeFailed)
    kind = fact.failure.kind if isinstance(fact, TrajectoryRecorded) else fact.kind
    assert kind == ("tool_timeout" if is_policys else "timeout")


async def test_a_turn_after_which_the_conversation_cannot_go_on_is_the_policys(
    bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> list[int]:
        raise InvalidMessages("the template refuses it")

    monkeypatch.setattr(ChatFormat, "bridge", refuse)
    fact = await played(bed, calls_once)
    assert isinstance(fact, TrajectoryRecorded)
    assert fact.failure.kind == "policy_unreadable"
    assert "the template refuses it" in fact.failure.detail
