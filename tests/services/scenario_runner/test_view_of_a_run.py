"""`upcycle view` of an evaluation on a real planner, real environments and a real trajectory store."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.run_pages.reading_pages import read
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import (
    announce_failed,
    announce_graded,
    arith,
    finished,
    register,
    run_spec,
    sampling,
    submit,
)
from tests.services.trajectory_store.running_store import running
from tests.support.waiting import until

from service_kit.groups import S3Settings
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.trajectory.v1 import service_pb2 as store_pb
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.platform import Addresses, Platform
from upcycle.run_pages.rendering import page_of
from upcycle.viewing.asked import Asked
from upcycle.viewing.platform_run import read_page

HOSTILE = "<script>alert(1)</script></pre>"


async def play(runner: Runner, request: Any) -> None:
    """Member 0 answers rightly, member 1 says what a page must not run, member 2 fails."""
    episode = request.episode
    if episode.member == 2:
        await announce_failed(runner, request, "environment_broken")
        return
    opened = await runner.environments.Open(env_pb2.OpenRequest(episode_id=episode.episode_id))
    a, b = map(int, opened.prompt[-1].content.removesuffix("?").split("+"))
    answer = str(a + b) if episode.member == 0 else HOSTILE
    turn = trajectory_pb2.Turn(
        text=answer, sampled_ids=[1, 2], sampled_texts=["<", "b>"], sampled_logprobs=[-0.1, -2.0]
    )
    body = trajectory_pb2.TrajectoryBody(
        episode=episode,
        prompt=opened.prompt,
        turns=[turn],
        answer=answer,
        stop_reason=trajectory_pb2.STOP_REASON_ANSWERED,
        sampled_by=common_pb2.VersionSpan(oldest=1, newest=1),
    )
    ref = await runner.store(body)
    grade = await runner.environments.Grade(env_pb2.GradeRequest(lease_id=opened.lease_id, body=ref))
    await runner.environments.Close(env_pb2.CloseRequest(lease_id=opened.lease_id))
    subscores = [trajectory_pb2.Subscore(name="right", weight=1, value=grade.reward)]
    fields = {"body": ref, "subscores": subscores, "stop_reason": body.stop_reason}
    await announce_graded(runner, request, grade.reward, grade.success, **fields)


@pytest.fixture
async def platform(runner: Runner, s3_settings: S3Settings, tmp_path: Path) -> AsyncIterator[Platform]:
    """With a planner and a store on one bus and one object store."""
    async with running(runner.nats.url, s3_settings, tmp_path / "store") as store:
        absent = "127.0.0.1:1"
        peers = {"tasksets": runner.address, "environments": runner.address, "trajectories": store.address}
        addresses = Addresses({**peers, "training": absent, "registry": absent, "gateway": absent}, "test")
        async with Platform(addresses) as connected, sampling(runner, lambda request: play(runner, request)):
            yield connected


async def test_an_evaluation_of_the_platform_is_a_page(runner: Runner, platform: Platform) -> None:
    await register(runner, arith())
    run = await submit(runner, run_spec(purpose=common_pb2.PURPOSE_EVAL, group_size=3))
    done = await finished(runner, run.run_id)
    graded = sum(result.failure_kind == "" for result in done.results)

    async def is_indexed() -> bool:
        wanted = store_pb.TrajectoryFilter(run_id=run.run_id)
        listed = await platform.trajectories.ListTrajectories(store_pb.ListTrajectoriesRequest(filter=wanted))
        return sum(one.graded for one in listed.trajectories) == graded

    await until(is_indexed)
    found = await read_page(platform, run.run_id, Asked(limit=None, tokens=False))
    assert found.report is not None
    assert found.report.overall.num_graded == graded
    assert found.notices == ()
    page = read(page_of(found))
    assert page.unclosed == []
    assert page.text.count(HOSTILE) >= graded // 2
    for part in (run.run_id, "completed", "pass@k", "environment_broken", "as the test wants", "right"):
        assert part in page.text
    with_tokens = page_of(await read_page(platform, run.run_id, Asked(limit=4, tokens=True)))
    assert '<span class="p3" title="-2.000">b&gt;</span>' in with_tokens
