"""The simulator itself: a slice of histories, that a seed is one history, and what it finds."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.simulation.history import Simulation
from tests.simulation.many import Wanted, play
from tests.simulation.nats_server import SimulatedConsumer, SimulatedServer
from tests.simulation.plans import plan_of
from tests.simulation.put_back import BUGS, Bug
from tests.simulation.stubs import StubLearner
from tests.simulation.study import find
from tests.simulation.virtual_time import VirtualLoop

from event_bus.topology import (
    CHECKPOINT_REGISTRY,
    EVENTS,
    REWARD_GRADER,
    SCENARIO_RUNNER_PLAN,
    TRAJECTORY_STORE_LEDGER,
    UPCYCLE,
)
from upcycle.api.taskset.v1.events_pb2 import RunFinished, RunStopping

_ROOT = Path(__file__).parents[2]


def simulated(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
def test_every_promise_holds_in_a_slice_of_histories_and_each_replays() -> None:
    """Traces are compared within a process and, by their digest, between two."""
    first = simulated("--seeds", "0-19", "--twice", "--keep-going")
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["ends"]["completed"] > 10, "most runs survive their faults, or the histories show little"
    again = json.loads(simulated("--seeds", "0-4", "--twice").stdout)
    assert again["traces"] == {seed: found["traces"][seed] for seed in again["traces"]}


def test_a_chunk_whose_result_is_kept_is_not_played_again(tmp_path: Path) -> None:
    wanted = Wanted(0, 2, keep=tmp_path / "results")
    played = play(wanted)
    with patch.object(Simulation, "play", side_effect=AssertionError):
        assert play(wanted) == played
    assert sum(played.ends.values()) == played.histories == 3


def read(durable: SimulatedConsumer) -> None:
    ((message, _, _),) = durable.take(5)
    durable.done(message.sequence)


def test_a_stream_at_its_bounds_keeps_what_a_durable_has_not_read_also_before_its_first_delivery() -> None:
    """Services that start late would otherwise find a stream without the facts before."""
    loop = VirtualLoop(random.Random(0), lambda process: None)
    server = SimulatedServer(loop, UPCYCLE, without=(CHECKPOINT_REGISTRY, REWARD_GRADER))
    for fact in (RunStopping, RunFinished):
        server.store(EVENTS, UPCYCLE.fact_subject(fact, "m"), b"{}", {})
    stream = server.streams[EVENTS]
    planner = stream.consumers[SCENARIO_RUNNER_PLAN.durable]
    ledger = stream.consumers[TRAJECTORY_STORE_LEDGER.durable]
    read(planner)
    server.forget(EVENTS)
    assert stream.messages
    read(ledger)
    server.forget(EVENTS)
    assert not stream.messages
    loop.close()


def test_a_bug_that_a_service_survives_ends_the_history() -> None:
    plans = (plan_of(seed) for seed in range(50))
    plan = next(one for one in plans if one.runs[0].spec.training and one.runs[0].ends_at_s is None)
    with tempfile.TemporaryDirectory() as folder, patch.object(StubLearner, "step", _with_a_bug):
        verdict = Simulation(Path(folder)).play(plan)
    assert verdict.broken.startswith("BUG: trainer/"), "either of the two trainers may hold the model"


def _with_a_bug(learner: StubLearner, group: object) -> None:
    raise TypeError("no such argument")


@pytest.mark.study
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.is_rare], ids=lambda bug: bug.name)
def test_a_bug_that_is_put_back_is_found(bug: Bug) -> None:
    assert find(bug)["found"]
