"""A run that is followed and does not move: what it waits for is said, once."""

from typing import Any

import pytest
from tests.libs.upcycle_cli.planner import NOWHERE, Planner, evaluation, serving

from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.cli.eval_follower import follow_evaluation
from upcycle.cli.waiting_view import SayingWaits
from upcycle.errors import Unavailable
from upcycle.platform import PEERS, Addresses, Platform
from upcycle.rpc import CallTimedOut
from upcycle.train import Conversation, TrainingClient


class Stuck(Planner):
    """Its run waits for an engine; how many episodes do is another number each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def ExplainRun(self, request: Any, context: Any) -> pb.ExplainRunResponse:
        self.asked += 1
        what = f"no engine serves \x1b[31mshop, {self.asked} episodes wait"
        reason = ts.WaitReason(owner="policy_engine", what=what, remedy="start one")
        return pb.ExplainRunResponse(waiting_for=[reason])


async def test_what_a_run_waits_for_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("upcycle.cli.waiting_view.QUIET_S", 0.2)
    planner = Stuck()  # type: ignore[abstract]
    going = evaluation("run-1")
    going.state = ts.RUN_STATE_RUNNING
    planner.watched = [going]
    async with serving(planner) as where, Platform(where) as platform:
        with pytest.raises(CallTimedOut):
            await follow_evaluation(platform, "run-1", timeout_s=3.0)
    said = capsys.readouterr().err
    assert said.count("it waits for policy_engine: no engine serves") == 1
    assert planner.asked > 1
    assert "\x1b" not in said
    assert "shop, 1 episodes wait → start one (this command follows it for 3 s, --timeout-s;" in said


async def test_a_call_of_a_training_client_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str | None] = []
    nowhere = Addresses(dict.fromkeys(PEERS, NOWHERE), "the test")
    client = TrainingClient("shop", runtime=nowhere, timeout_s=1.0, on_wait=said.append)
    with pytest.raises(Unavailable):
        await client.step([Conversation([{"role": "assistant", "content": "1"}])], learning_rate=1e-3)
    assert said
    assert all(one is not None and "step of 'shop'" in one for one in said)

    say = SayingWaits()
    for waits in (None, *said[:1] * 4, None, *said[:1] * 9, None, None):
        say(waits)
    shown = capsys.readouterr().err
    assert (shown.count("waiting: step of 'shop'"), shown.count("it goes on")) == (1, 1)
