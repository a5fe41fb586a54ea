"""Roll out, step, roll out again: `python -m examples.training.loop MODEL tasks.py:TASKSET`.

The platform is the one that `upcycle up` or `upcycle demo` runs. Every step saves a checkpoint and makes it
head, so the next rollouts sample what was learnt.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from examples.training.double_sided import DoubleSided
from upcycle import Taskset, TrainingClient, create_agent
from upcycle.eval import Job
from upcycle.train import whole_groups


async def train(model: str, taskset: Taskset, *, steps: int, group: int, learning_rate: float) -> None:
    """`steps` optimizer steps, each on `group` rollouts of every task."""
    agent, trainer = create_agent(model), TrainingClient(model)
    session = await Job.start(model, group=group)
    for _ in range(steps):
        start = len(session.runs)
        await taskset.run(agent, job=session)
        batch = whole_groups(session.runs[start:], group)
        if not batch:
            raise SystemExit("no group has a reward for each of its rollouts; see `upcycle why`")
        passed = await trainer.forward_backward_custom(batch, DoubleSided(), group_size=group)
        done = await trainer.optim_step(learning_rate)
        reward = sum(run.reward for run in batch) / len(batch)
        kept = passed.metrics["kept_fraction"]
        print(f"step {done.step}  v{done.version}  reward {reward:.3f}  kept {kept:.0%}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("taskset", help="tasks.py, or tasks.py:NAME where it has several")
    parser.add_argument("--tasks", type=int, default=8, help="how many of the taskset's tasks")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--group", type=int, default=8, help="rollouts of each task")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    asked = parser.parse_args()
    path, _, name = asked.taskset.partition(":")
    whole = Taskset.load(Path(path), name or None)
    few = Taskset(f"{whole.name}-{asked.tasks}", list(whole)[: asked.tasks], whole.split)
    asyncio.run(
        train(asked.model, few, steps=asked.steps, group=asked.group, learning_rate=asked.learning_rate)
    )


if __name__ == "__main__":
    main()
