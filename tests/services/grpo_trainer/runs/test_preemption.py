"""A spot notice: the step under way becomes durable or is abandoned, the process leaves in time, and the run
goes on elsewhere with the same bits."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.services.grpo_trainer.bench import MODEL, RUN, Trainer, World
from tests.services.grpo_trainer.learners import same
from tests.services.grpo_trainer.processes import (
    STEPS,
    Process,
    assert_all_trained_once,
    of_group,
    outside,
    publish,
    run_of_steps,
    wait_for,
)
from tests.support.waiting import until

from grpo_trainer.domain.following import UNSCALED, Scales
from grpo_trainer.domain.states import SessionPhase
from grpo_trainer.handlers import FactReader, stored_facts
from grpo_trainer.learner.protocol import BatchGroup, StepNumbers
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from grpo_trainer.runs.sessions import RunSessions
from service_kit.groups import S3Settings


async def same_as_uninterrupted(world: World, weights: dict[str, torch.Tensor], version: int) -> None:
    async with Trainer(world):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v{version:08d}")
    assert same(await world.weights(version), weights)


@pytest.mark.slow
@pytest.mark.study
@pytest.mark.timeout(300)
async def test_after_a_notice_the_run_goes_on_elsewhere_with_the_same_bits(
    tmp_path: Path, s3_settings: S3Settings
) -> None:
    reference = World(tmp_path / "reference")
    await run_of_steps(reference)
    async with outside(reference, tmp_path, s3_settings) as around:
        for machine, notice in enumerate((signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM), start=1):
            variables = around.environment(tmp_path / f"machine-{machine}")
            async with Process(variables, tmp_path / "trainer.log") as process:
                await process.start()
                last = machine + 1 if machine < 3 else STEPS
                await publish(reference, around.bus, of_group(machine - 1))
                facts = await wait_for(around.bus, machine)
                for index in range(machine, last):
                    await publish(reference, around.bus, of_group(index))
                if machine == 3:
                    facts = await wait_for(around.bus, STEPS)
                assert await process.end(notice) == 0
        found = await around.weights(STEPS, tmp_path)
    assert_all_trained_once(facts)
    assert (tmp_path / "trainer.log").read_text().count("spot_notice") == 1
    await same_as_uninterrupted(reference, found, STEPS)


class SlowLearner(TorchLearner):
    """From the second step on it takes far too long."""

    steps = 0

    async def step(self, groups: Sequence[BatchGroup], scales: Scales = UNSCALED) -> StepNumbers:
        """As TorchLearner.step, too late."""
        SlowLearner.steps += 1
        if SlowLearner.steps > 1:
            await asyncio.sleep(600)
        return await super().step(groups, scales)


async def test_a_step_that_takes_too_long_is_abandoned_and_taken_again(tmp_path: Path) -> None:
    world, reference = World(tmp_path / "world"), World(tmp_path / "reference")
    await run_of_steps(world, 3)
    await run_of_steps(reference, 3)
    SlowLearner.steps = 0
    thread = LearnerThread(LearnerOptions(num_threads=1))
    deps = dataclasses.replace(world.deps(thread), new_learner=lambda: SlowLearner(thread))
    sessions, stop = RunSessions(deps, stored_facts(world.stream), leave_s=0.5), asyncio.Event()
    running = asyncio.create_task(FactReader(world.stream, sessions).run(stop))
    await world.published(f"policy.published/default/{MODEL}/1")
    await until(lambda: sessions.get(RUN).phase is SessionPhase.STEPPING, timeout_s=60)
    stop.set()
    async with asyncio.timeout(60):  # the step itself would take 600 s
        await running
    thread.close()
    assert not [event for event in world.recorder.events if event == f"step.completed/{RUN}/2"]
    async with Trainer(world):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000003")
    await same_as_uninterrupted(reference, await world.weights(3), 3)


HANGING = """
import asyncio, time
from grpo_trainer.preemption import PreemptionWatch

async def main():
    watch = PreemptionWatch({grace}, leave=lambda: None)
    await watch.start()
    await watch.stop()
    print("leaving", flush=True)
    time.sleep({hang})

asyncio.run(main())
"""


@pytest.mark.parametrize(("grace", "hang", "status"), [(3.0, 60, 1), (60, 0, 0)])
def test_a_process_that_hangs_is_ended_before_its_grace_is_over(
    grace: float, hang: float, status: int
) -> None:
    program = HANGING.format(grace=grace, hang=hang)
    done: Any = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (status, "leaving\n"), done.stderr
