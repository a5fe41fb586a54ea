"""Evaluate, then train on what was sampled.

python -m examples.training.from_evaluations MODEL TASKS.py NAME
"""

import asyncio
import sys

from upcycle import Taskset, create_agent
from upcycle.eval import Job


async def main(model: str, tasks_file: str, name: str) -> None:
    """Groups of 8 of every task, then two steps on them; nothing is sampled for the training."""
    job = await Job.start(model, group=8)
    agent = create_agent(model, max_turns=6, max_tokens_per_turn=32)
    await Taskset.load(tasks_file, name).run(agent, job=job)
    trained = await job.train(steps=2, prompts=4, learning_rate=5e-4, sampling=False)
    print(f"{trained.run_id}: {trained.steps} steps, v{trained.version}, groups {dict(trained.counts)}")
    for source in trained.sources:
        print(f"{source.trained} of {source.groups} groups trained; left out: {dict(source.left_out)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
