"""`upcycle check --record`: what an attack found stands with the taskset, with the model that it was run
against."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import Message
from tests.local_servers import NatsServer
from tests.services.scenario_runner.conftest import Runner
from tests.services.trajectory_store import events
from tests.services.trajectory_store.running_store import Store, body_of, running
from tests.support.command_line import NO_PEERS, run_upcycle, without_settings
from tests.support.waiting import until

from identities import objects
from service_kit.groups import S3Settings
from trajectory_body import pack
from upcycle.api.taskset.v1.service_pb2 import RegisterTasksetRequest
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.tasks import Taskset
from upcycle.wire import taskset_to_wire

TASKS = """
from upcycle import Environment, Taskset

env = Environment("incidents")
print("what a file prints as it is loaded is no result")


@env.scenario("ask")
async def ask(expected: str):
    answer = yield "What broke?"
    yield 1.0 if answer == expected or "OOM" in answer else 0.0


TASKS = Taskset("asks", [ask.task(slug=one, expected=one) for one in ("pool", "deploy", "disk")], "train")
"""


async def answers(store: Store, number: int, task: str, answer: str) -> None:
    """A graded episode of the task with this digest."""
    body = body_of(number)
    body.answer = answer
    ref = await store.blobs.put(objects.trajectory_body("run-1", body.episode.episode_id), pack(body))
    graded = events.graded(number, reward=0.0, body=ref)
    messages: list[Message] = [events.requested(number), events.recorded(number, body=ref), graded]
    for message in messages:
        message.episode.task_digest = task  # type: ignore[attr-defined]
    await store.publish(*messages)

    async def is_graded() -> bool:
        wanted = pb.TrajectoryFilter(model=events.MODEL, min_reward=0.0)
        listed = (await store.api.ListTrajectories(pb.ListTrajectoriesRequest(filter=wanted))).trajectories
        return any(one.episode.episode_id == body.episode.episode_id for one in listed)

    await until(is_graded)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    file = tmp_path / "tasks.py"
    file.write_text(TASKS)
    return file


def mend(tasks: Path) -> None:
    tasks.write_text(TASKS.replace('or "OOM" in answer', ""))


async def test_an_attack_stands_with_the_taskset_and_with_the_model_it_was_run_against(
    runner: Runner, nats: NatsServer, s3_settings: S3Settings, tasks: Path
) -> None:
    taskset = Taskset.from_file(tasks)
    async with running(nats.url, s3_settings, tasks.parent / "store") as store:
        addresses = {"UPCYCLE_PEERS_TASKSETS": runner.address, "UPCYCLE_PEERS_TRAJECTORIES": store.address}
        env = {**without_settings(), **NO_PEERS, **addresses}

        async def check(*arguments: str) -> tuple[int, str, str]:
            return await run_upcycle("check", str(tasks), *arguments, env=env, cwd=tasks.parent)

        status, _, said = await check("--record")
        assert (status, "no taskset 'asks' is registered" in said) == (2, True), said
        await runner.tasksets.RegisterTaskset(RegisterTasksetRequest(taskset=taskset_to_wire(taskset)))
        status, _, said = await check("--record")
        assert status == 0, said
        assert "kept with asks@1, of which is known:" in said
        assert "attack on the graders (the same cheats for every model): 0 findings in 3 of 3 tasks" in said
        status, _, said = await check("--record", "--against", events.MODEL)
        assert f"model {events.MODEL!r} gave no answer to these tasks" in said
        # The model's habit pays at every task, and no cheat that is the same for every model shows it.
        for number, answer in enumerate(("OOM", "OOM", "unknown")):
            await answers(store, number, taskset.tasks[number].digest, answer)
        status, out, said = await check("--record", "--against", events.MODEL, "--json")
        assert status == 1, said
        found = "an answer of the model ('OOM') earns 1 on average, limit 0.05"
        assert [one["detail"] for one in json.loads(out)["findings"]] == [found]
        assert f"attack on the graders (against {events.MODEL}): 1 finding in 3 of 3 tasks" in said
        assert f"cheat: 3 tasks: {found}" in said
        mend(tasks)
        status, _, said = await check("--record", "--against", events.MODEL)
        assert status == 0, said
        kept = [line.strip() for line in said.splitlines() if "attack on the graders" in line]
        now = f"attack on the graders (against {events.MODEL}): 0 findings"
        before = f"attack on the graders (against {events.MODEL}), of an older source"
        assert (kept[0].startswith(now), kept[1].startswith(before)) == (True, True)


async def test_nothing_is_played_for_what_could_not_be_kept(runner: Runner, tasks: Path) -> None:
    taskset = Taskset.from_file(tasks)
    others = replace(taskset, tasks=taskset.tasks[:2])
    await runner.tasksets.RegisterTaskset(RegisterTasksetRequest(taskset=taskset_to_wire(others)))
    env = {**without_settings(), **NO_PEERS, "UPCYCLE_PEERS_TASKSETS": runner.address}
    status, out, said = await run_upcycle("check", str(tasks), "--record", env=env, cwd=tasks.parent)
    assert (status, out) == (2, ""), said
    assert "no revision of taskset 'asks' on the platform has these tasks" in said
