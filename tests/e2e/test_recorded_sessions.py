"""An agent of somebody else, from its calls to trained weights: its loop plays sessions and rewards them, a
run trains on them, and the ledger has every session once."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from tests.e2e.test_loop import assert_conserved, balanced
from tests.e2e.test_seed_listings import UPCYCLE, printed
from tests.platform_recipes import EXAMPLE, MODEL, TRAIN_TASKSET, addresses, small_stack
from tests.support.waiting import until

from local_stack.stack import Stack
from upcycle.api.registry.v1.registry_pb2 import Checkpoint
from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest
from upcycle.api.taskset.v1.service_pb2 import ExplainRunRequest, ListRunsRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_RUNNING
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1.trajectory_pb2 import LEDGER_STATE_TRAINED
from upcycle.platform import Platform

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]
GROUP, PROMPTS, STEPS = 4, 2, 2
QUESTIONS: Final = ("why is checkout slow?", "who pages at night?", "which disk is full?", "is search down?")
TOOLS: Any = [{"type": "function", "function": {"name": "search_logs", "parameters": {"type": "object"}}}]
MAX_TURNS = 3
LABELLED: Final = "group=nightly,label=flow:page,label=env:test"
RETENTION_S = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform whose gateway waits half a minute for the reward of a session."""
    env = {
        "MODEL_GATEWAY_SESSION_RETENTION_DAYS": str(RETENTION_S / 86_400),
        "MODEL_GATEWAY_SESSION_IDLE_S": str(RETENTION_S),
    }
    async with small_stack(tmp_path_factory.mktemp("agent"), extra_env=env) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    async with Platform(addresses(stack)) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    """As an application has it: of the platform it knows a URL and a key."""
    where = addresses(stack)
    async with AsyncOpenAI(base_url=where.gateway_url, api_key=where.gateway_key(), timeout=60) as made:
        yield made


async def plays(client: AsyncOpenAI, session_id: str, question: str, labels: str = "") -> None:
    """The agent's own loop: it asks until there is an answer."""
    mine = client.with_options(default_headers={"X-Session-ID": session_id, "X-Session-Labels": labels})
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        reply = await mine.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, max_tokens=24, temperature=1.0
        )
        said = reply.choices[0].message
        if not said.tool_calls:
            break
        messages.append({"role": "assistant", "content": said.content, "tool_calls": said.tool_calls})
        for call in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "no earlier lines"})


async def rewarded(client: AsyncOpenAI, session_id: str, score: float, group: str) -> dict[str, Any]:
    body = {"score": score, "group": group, "split": "train"}
    return await client.post(f"/sessions/{session_id}/reward", cast_to=dict[str, Any], body=body)


async def graded(client: AsyncOpenAI, question: str, group: str, number: int, labels: str) -> str:
    """A session with its reward, every second one liked; the run of its key."""
    session_id = f"{re.sub('[^a-z]', '', question)}-{group}-{number}"
    await plays(client, session_id, question, labels)
    return str((await rewarded(client, session_id, float(number % 2), group))["run_id"])


async def graded_group(client: AsyncOpenAI, question: str, group: str, labels: str = "") -> str:
    """GROUP sessions that begin alike; the run of their key."""
    run_ids = await asyncio.gather(
        *(graded(client, question, group, number, labels) for number in range(GROUP))
    )
    (run_id,) = set(run_ids)
    return run_id


OF_TASKS: Final = ("--taskset", str(EXAMPLE / "tasks.py"), "--taskset-name", TRAIN_TASKSET, "--no-sampling")


async def trained_on(stack: Stack, folder: Path, *options: str) -> dict[str, Any]:
    """`upcycle train` to its end: what its last line says of the run."""
    where = addresses(stack)
    command = (UPCYCLE, "train", MODEL, "--prompts", str(PROMPTS), "--json")
    status, text = await printed(where, folder, *command, *options)
    assert status == 0, text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    (done,) = [line for line in lines if line.get("kind") == "done"]
    run: dict[str, Any] = done
    return run


async def saved_by(platform: Platform, run_id: str) -> Sequence[Checkpoint]:
    """Checkpoints of a run, oldest first."""

    async def listed() -> Sequence[Checkpoint]:
        reply = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=MODEL), timeout=10)
        return [one for one in reply.checkpoints if one.run_id == run_id]

    found: Sequence[Checkpoint] = await until(listed, f"a checkpoint of {run_id}", timeout_s=30)
    return found


async def test_sessions_of_a_foreign_agent_train_once_each_and_an_ungraded_one_is_excluded(
    stack: Stack, platform: Platform, client: AsyncOpenAI, tmp_path: Path
) -> None:
    await plays(client, "nobody-says-how-it-was", QUESTIONS[0])
    await graded_group(client, "what does nobody label?", "nightly")  # the oldest: it would be taken first
    of_key = [await graded_group(client, one, "nightly", "flow=page,env=test") for one in QUESTIONS]
    sessions, num_graded = of_key[0], len(QUESTIONS) * GROUP
    assert set(of_key) == {sessions}

    done = await trained_on(stack, tmp_path, "--sessions", LABELLED, "--steps", str(STEPS))

    ledger = await balanced(
        platform, sessions, **{"trained": STEPS * PROMPTS * GROUP, "excluded(ungraded)": 1}
    )
    assert_conserved(ledger)
    assert dict(ledger.by_state) == {"trained": num_graded, "evaluated": GROUP, "excluded(ungraded)": 1}
    wanted = pb.TrajectoryFilter(run_id=sessions, state=LEDGER_STATE_TRAINED)
    listed = await platform.trajectories.ListTrajectories(
        pb.ListTrajectoriesRequest(filter=wanted, page_size=100), timeout=10
    )
    assert {one.ledger.trained_by_run for one in listed.trajectories} == {done["run_id"]}
    assert {tuple(one.episode.labels) for one in listed.trajectories} == {("env:test", "flow:page")}
    assert sorted({one.ledger.step for one in listed.trajectories}) == list(range(1, STEPS + 1))
    checkpoints = await saved_by(platform, done["run_id"])
    assert (checkpoints[-1].step, dict(checkpoints[-1].sources)) == (STEPS, {sessions: STEPS * PROMPTS})
    assert done["spec"]["taskset"] == "", "it was about no tasks"


async def test_a_run_takes_sessions_as_they_are_graded_and_says_what_it_waits_for(
    stack: Stack, platform: Platform, client: AsyncOpenAI, tmp_path: Path
) -> None:
    options = ("--sessions", "group=live", "--sessions-idle-s", "120", "--group", str(GROUP), "--steps", "1")
    training = asyncio.create_task(trained_on(stack, tmp_path, *OF_TASKS, *options))
    try:
        run_id = await until(lambda: waits_for_sessions(platform), "the run to wait", timeout_s=60)
        live = QUESTIONS[:PROMPTS]
        (sessions, *_) = [await graded_group(client, question, "live") for question in live]
        done = await training
    finally:
        training.cancel()
    assert (done["run_id"], int(done["step"])) == (run_id, 1)
    wanted = pb.TrajectoryFilter(run_id=sessions, state=LEDGER_STATE_TRAINED)
    request = pb.ListTrajectoriesRequest(filter=wanted, page_size=100)

    async def by_this_run() -> bool:
        listed = (await platform.trajectories.ListTrajectories(request, timeout=10)).trajectories
        return len([one for one in listed if one.ledger.trained_by_run == run_id]) == PROMPTS * GROUP

    await until(by_this_run, "the ledger to have the step", timeout_s=30)
    assert_conserved(await balanced(platform, sessions))


async def waits_for_sessions(platform: Platform) -> str:
    """The run of the model that waits for sessions as they come, if there is one."""
    listed = (await platform.tasksets.ListRuns(ListRunsRequest(limit=1, model=MODEL), timeout=10)).runs
    for run in (one for one in listed if one.state == RUN_STATE_RUNNING):
        why = await platform.tasksets.ExplainRun(ExplainRunRequest(run_id=run.run_id), timeout=10)
        if any("waiting for graded sessions (group=live)" in reason.what for reason in why.waiting_for):
            return str(run.run_id)
    return ""
