"""Trajectories whose scenario asks a judge: real graders, a real fleet of forked environments, and a real
server of models."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from tests.services.reward_grader.conftest import Testbed
from tests.services.scenario_runner.fleets import ENVIRONMENTS, running_fleet
from tests.support.judges import completion, judging, verdict
from tests.support.model_servers import KEY, Asked, ModelServerDouble, Said, serving
from tests.support.waiting import until

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from scenario_runner.adapters.stored_transcripts import ScenarioTranscripts
from scenario_runner.domain.environments import EpisodeToPlay, PythonEnvironment
from scenario_runner.servicer.environments import EnvironmentServicer
from scenario_runner.servicer.statuses import ENVIRONMENT_STATUSES
from scenario_runner.usecases.leases import LeaseRules, Leases
from service_kit.groups import S3Settings
from service_kit.ports import free_ports
from upcycle.api.environment.v1.service_pb2_grpc import add_EnvironmentServiceServicer_to_server
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded

JUDGED = PythonEnvironment("judged", str(ENVIRONMENTS / "judged.py"))


@dataclass
class Play:
    """Plays episodes to the record that graders get."""

    bed: Testbed
    leases: Leases
    rows: dict[str, EpisodeToPlay]
    address: str

    async def __call__(self, scenario: str = "essay", args: str = "{}") -> TrajectoryRecorded:
        record = await self.bed.record(len(self.rows))
        episode_id, deadline = record.episode.episode_id, datetime.now(UTC) + timedelta(minutes=10)
        self.rows[episode_id] = EpisodeToPlay(episode_id, JUDGED, scenario, args, deadline)
        record.lease_id = (await self.leases.open(episode_id)).lease_id
        record.environment_address = self.address
        await self.bed.publish(record)
        return record


@pytest.fixture
async def play(bed: Testbed) -> AsyncIterator[Play]:
    async with running_fleet() as fleet:
        numbers = iter(range(100))
        leases = Leases(
            fleet.hosts,
            fleet.episodes,
            ScenarioTranscripts(bed.blobs),
            LeaseRules(8, 600.0),
            now=lambda: datetime.now(UTC),
            new_id=lambda prefix: f"{prefix}-{next(numbers)}",
        )
        server = GrpcServer("127.0.0.1", 0, OPEN)
        servicer = EnvironmentServicer(leases, address=lambda: server.address)
        server.add(add_EnvironmentServiceServicer_to_server, servicer, ENVIRONMENT_STATUSES)
        await server.start()
        yield Play(bed, leases, fleet.episodes.rows, server.address)
        await leases.close_all()
        await server.stop()


def judged_by(server: ModelServerDouble) -> dict[str, Any]:
    """Settings of a grader whose default judge is this server."""
    settings = {"judge_url": f"{server.url}/v1", "judge_model": "wise-1", "judge_key": SecretStr(KEY)}
    return settings | {"grade_timeout_s": 60.0, "gone_after_s": 120.0}


@pytest.mark.parametrize(
    ("met", "reward"), [((True, False), 1.0), ((True, True), 0.0), ((False, False), 0.0)]
)
async def test_a_model_judges_an_answer_of_the_platform(
    bed: Testbed, play: Play, met: tuple[bool, ...], reward: float
) -> None:
    with serving(judging(*met)) as judge:
        await bed.grader(**judged_by(judge))
        await play()
        (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert (fact.reward, fact.success) == (reward, reward == 1.0)
    (tree,) = fact.subscores
    assert '"model": "wise-1"' in tree.info  # who judged, on what, and why: `trajectories show` prints it
    assert '"prompt_tokens": 100' in tree.info
    assert [f"reason {number}" in child.info for number, child in enumerate(tree.children, 1)] == [True, True]
    (request,) = judge.turns
    assert "OOM" in request.body["messages"][1]["content"]  # the answer of the stored trajectory
    assert KEY not in str(fact)


async def test_a_judge_that_garbles_is_asked_again_and_then_the_episode_is_missing(
    bed: Testbed, play: Play
) -> None:
    said: list[Callable[[Asked], Said]] = [
        lambda asked: completion("Well, that depends."),
        lambda asked: completion(f"```json\n{verdict(asked, True, False)}\n```"),
        lambda asked: completion("It is good."),
        lambda asked: completion('{"criteria": [{"id": 1, "met": true}, {"id": 2, "met": false}]}'),
    ]
    with serving(lambda asked: said.pop(0)(asked)) as judge:
        await bed.grader(**judged_by(judge), slots=1)
        await play()
        (fact,) = await bed.outcomes(1)
        assert isinstance(fact, TrajectoryGraded)
        assert fact.reward == 1.0
        await play()
        (_, failed) = await bed.outcomes(2)
    assert isinstance(failed, EpisodeFailed)
    assert failed.kind == "external_failure"
    assert "wise-1 gave no verdict on each of 2 criteria" in failed.detail
    assert len(judge.turns) == 4


async def test_a_judge_that_is_away_is_waited_for(bed: Testbed, play: Play) -> None:
    is_away = threading.Event()
    is_away.set()
    answer = judging(True, False)
    with serving(lambda asked: Said(401, "who are you") if is_away.is_set() else answer(asked)) as judge:
        await bed.grader(**judged_by(judge))
        await play()
        await until(lambda: len(judge.turns) >= 2, "a second try")
        assert bed.events == []
        is_away.clear()
        (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert fact.reward == 1.0


async def test_a_judge_that_stays_away_makes_the_episode_missing(bed: Testbed, play: Play) -> None:
    (port,) = free_ports(1)
    settings = judged_by(ModelServerDouble(f"http://127.0.0.1:{port}"))
    await bed.grader(**settings, judge_gone_after_s=1.0)
    await play()
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "external_failure"
    assert "judge wise-1, which does not answer" in fact.detail


async def test_an_episode_that_names_another_judge_or_finds_none_is_refused_by_name(
    bed: Testbed, play: Play
) -> None:
    with serving(judging(True, False)) as judge:
        grader = await bed.grader(**judged_by(judge))
        await play(args=f'{{"model": "openai:{judge.url}/v1#other"}}')
        (unknown,) = await bed.outcomes(1)
        assert isinstance(unknown, EpisodeFailed)
        assert unknown.kind == "environment_broken"
        assert "#other' is none that this platform asks" in unknown.detail
        await grader.stop()
        await bed.grader(grade_timeout_s=60.0)
        await play()
        (_, without) = await bed.outcomes(2)
    assert isinstance(without, EpisodeFailed)
    assert without.kind == "environment_broken"
    assert "nothing here asks a model; name one: REWARD_GRADER_JUDGE_URL" in without.detail
    assert judge.turns == []


async def test_a_fleet_of_the_version_before_grades_without_judges(bed: Testbed) -> None:
    await bed.grader(**judged_by(ModelServerDouble("http://127.0.0.1:1")))
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert bed.environments.num_grade_calls == 1


async def test_a_grader_that_is_killed_while_the_judge_thinks_leaves_one_grade(
    bed: Testbed, play: Play, s3_settings: S3Settings
) -> None:
    """Killed between the two calls: another one finds the question again, and the environment as it was."""
    goes_on, answer = threading.Event(), judging(True, False)

    def think(asked: Asked) -> Said:
        goes_on.wait(60)
        return answer(asked)

    with serving(think) as judge:
        first = await _grader_process(bed, judge, s3_settings)
        try:
            record = await play()
            await until(lambda: len(judge.turns) == 1, "the question to the judge", timeout_s=120)
            first.send_signal(signal.SIGKILL)
            await first.wait()
            assert bed.events == []
            await bed.grader(**judged_by(judge))
            await until(lambda: len(judge.turns) == 2, "the same question again", timeout_s=120)
        finally:
            goes_on.set()
            if first.returncode is None:
                first.kill()
                await first.wait()
        (fact,) = await bed.all_outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert (fact.reward, fact.episode.episode_id) == (1.0, record.episode.episode_id)
    questions = [request.body["messages"] for request in judge.turns]
    assert questions[0] == questions[1]
    assert play.leases.num_alive == 0


async def _grader_process(
    bed: Testbed, judge: ModelServerDouble, s3: S3Settings
) -> asyncio.subprocess.Process:
    """A grader that a test may kill."""
    settings = {
        "REWARD_GRADER_HTTP_PORT": "0",
        "REWARD_GRADER_JUDGE_URL": f"{judge.url}/v1",
        "REWARD_GRADER_JUDGE_MODEL": "wise-1",
        "REWARD_GRADER_JUDGE_KEY": KEY,
        "UPCYCLE_BUS_URL": bed.settings.bus.url,
        "UPCYCLE_S3_ENDPOINT": s3.endpoint,
        "UPCYCLE_S3_BUCKET": s3.bucket,
        "UPCYCLE_S3_ACCESS_KEY": s3.access_key.get_secret_value(),
        "UPCYCLE_S3_SECRET_KEY": s3.secret_key.get_secret_value(),
        "UPCYCLE_S3_SECURE": str(s3.secure),
        "UPCYCLE_S3_REGION": s3.region,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "reward_grader.app",
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
