"""Published listings of a training loop, word for word, against a small stack: rewards become weights."""

import ast
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.platform_recipes import EXAMPLE, REPOSITORY, addresses, small_stack
from tests.support.waiting import until

from identities.entities import interactive_run_id
from local_stack.stack import Stack
from upcycle import Taskset, TrainingClient, create_agent
from upcycle.api.training.v1.service_pb2 import GetSessionRequest
from upcycle.api.training.v1.training_pb2 import SESSION_KIND_INTERACTIVE, TrainingSession
from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryRequest
from upcycle.errors import Unavailable
from upcycle.eval import Job, Run
from upcycle.platform import Addresses, Platform
from upcycle.rpc import RemoteNotFound, RemoteRefused, remote_errors
from upcycle.train import Conversation, Sample, TokenRow, Trajectory, whole_groups

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = "arith-rl"
LISTINGS = REPOSITORY / "tests" / "seeds" / "listings"
GROUP = 8
NUM_TASKS = 2
# What the listing leaves to its reader.
BLANK = "taskset, runtime = ...  # your taskset + runtime (see Tasks / Deploy)"
FILLED = "taskset, runtime = chosen()"
RUN_LISTING = """
import runpy, sys
from pathlib import Path
from upcycle import Taskset
def chosen():
    tasks = list(Taskset.load(Path(sys.argv[2]), sys.argv[3]))[: int(sys.argv[4])]
    return Taskset("arith", tasks), None
runpy.run_path(sys.argv[1], init_globals={"chosen": chosen}, run_name="__main__")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform whose one model has the listings' slug."""
    async with small_stack(tmp_path_factory.mktemp("interactive"), model=MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def where(stack: Stack) -> Addresses:
    """How a client finds it."""
    return addresses(stack)


def taskset() -> Taskset:
    """A few training tasks."""
    tasks = list(Taskset.load(EXAMPLE / "tasks.py", "incident-train"))
    return Taskset("arith", tasks[:NUM_TASKS])


async def rollouts(where: Addresses) -> list[Run]:
    """Whole groups of graded runs under head."""
    session = await Job.start(MODEL, group=GROUP)
    await taskset().run(create_agent(MODEL, max_turns=8, max_tokens_per_turn=64), runtime=where, job=session)
    return whole_groups(session.runs, GROUP)


async def test_the_training_loop_runs_as_printed(where: Addresses, tmp_path: Path) -> None:
    source = (LISTINGS / "train.txt").read_text()
    assert BLANK in source
    script = tmp_path / "train.py"
    script.write_text(source.replace(BLANK, FILLED))
    arguments = [str(script), str(EXAMPLE / "tasks.py"), "incident-train", str(NUM_TASKS)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN_LISTING,
        *arguments,
        env={
            **os.environ,
            **{f"UPCYCLE_PEERS_{peer.upper()}": at for peer, at in where.peers.items()},
            "UPCYCLE_OPERATOR_KEY": where.platform_key() or "",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(280):
        printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]
    lines = printed.decode().splitlines()
    assert lines[0] == f"optim 1default/policies/{MODEL}/v00000001/manifest.json"
    assert len(lines) == 10
    client = TrainingClient(MODEL, runtime=where)
    head = await client.head()
    assert head.version == 10
    tree = await client.checkpoints()
    assert [one.version for one in tree] == list(range(11))
    assert tree[10].parent_checkpoint_id == tree[9].checkpoint_id
    assert tree[10].metrics["num_trajectories"] == NUM_TASKS * GROUP


async def test_the_custom_loss_runs_as_printed(where: Addresses) -> None:
    trainer, batch = TrainingClient(MODEL, runtime=where), await rollouts(where)
    before = await trainer.head()
    names: dict[str, Any] = {"trainer": trainer, "batch": batch}
    source = (LISTINGS / "custom_loss.txt").read_text()
    code = compile(source, "custom_loss.txt", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)  # noqa: S307 - our own resource
    after = await trainer.head()
    assert after.version == before.version + 1
    assert after.parent_checkpoint_id == before.checkpoint_id
    assert after.digest != before.digest


async def test_inputs_mix_and_head_goes_back_and_forth(where: Addresses) -> None:
    trainer = TrainingClient(MODEL, runtime=where)
    assert {"importance_sampling", "ppo", "cispo", "dro", "cross_entropy"} <= set(
        await trainer.available_losses()
    )
    batch = await rollouts(where)
    passed = await trainer.forward([batch[0], batch[1].trace_id], group_size=2)
    one = passed.data[0]
    ids = list(one.token_ids)
    inline = Trajectory([Sample(ids[:40], ids[40:44], [-1.0, -1.0, -1.0, -1.0])], reward=0.5)
    mixed = await trainer.forward_backward([batch[0], batch[1].trace_id, inline, batch[2]], group_size=4)
    assert mixed.num_datums == 4
    with pytest.raises(RemoteRefused, match="not whole groups of 8"):
        await trainer.forward_backward(batch[:7], group_size=GROUP)
    before = await trainer.head()
    done = await trainer.optim_step(1e-5)
    assert (await trainer.head()).checkpoint_id == done.checkpoint_id
    assert (await trainer.set_head(before)).version == before.version
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "restart"}]
    cloned = await trainer.step(
        [Conversation(messages)], learning_rate=1e-4, loss_fn="cross_entropy", promote=False
    )
    assert not cloned.is_head
    assert cloned.version == done.version + 1
    assert (await trainer.head()).version == before.version
    with pytest.raises(RemoteNotFound, match="unknown"):
        await TrainingClient("unknown", runtime=where).available_losses()


async def test_a_killed_trainer_applies_each_gradient_once_or_refuses(stack: Stack, where: Addresses) -> None:
    trainer, row = TrainingClient(MODEL, runtime=where), TokenRow([5, 6, 7, 8], weights=[0, 1, 1, 1])
    before = await trainer.checkpoints()
    await trainer.forward_backward([row], "cross_entropy")
    await stack.kill("grpo_trainer")
    with pytest.raises(RemoteRefused, match="call forward_backward again"):
        await trainer.optim_step(1e-5)
    stepping = asyncio.create_task(trainer.step([row], learning_rate=1e-5, loss_fn="cross_entropy"))
    await asyncio.sleep(0.3)
    await stack.kill("grpo_trainer")
    done = await stepping
    after = await trainer.checkpoints()
    assert [one.checkpoint_id for one in after[len(before) :]] == [done.checkpoint_id]
    assert after[-1].parent_checkpoint_id == before[-1].checkpoint_id
    assert (await trainer.head()).checkpoint_id == done.checkpoint_id
    async with Platform(where) as platform:
        asked = GetSessionRequest(run_id=interactive_run_id(MODEL))

        async def shown() -> TrainingSession | None:
            try:
                with remote_errors():
                    return (await platform.training.GetSession(asked, timeout=10)).session
            except (Unavailable, RemoteNotFound):  # the step ended before the kill: the trainer is starting
                return None

        session = await until(shown, "the session of the trainer that was killed", timeout_s=120)
    assert (session.kind, session.version) == (SESSION_KIND_INTERACTIVE, done.version)


async def test_the_engine_serves_the_head_that_an_interactive_step_moved(where: Addresses) -> None:
    """What was learnt is what is sampled."""
    trainer = TrainingClient(MODEL, runtime=where)
    version = (await trainer.head()).version
    async with asyncio.timeout(60):
        while True:
            run = (await rollouts(where))[0]
            assert run.trajectory is not None
            if await _sampled_by(where, run.trace_id) == version:
                return


async def _sampled_by(where: Addresses, trace_id: str) -> int:
    async with Platform(where) as platform:
        reply = await platform.trajectories.GetTrajectory(GetTrajectoryRequest(trajectory_id=trace_id))
    return int(reply.summary.sampled_by.newest)
