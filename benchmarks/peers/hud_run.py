"""Episodes per second of HUD 0.6.21's SubprocessRuntime with an agent that answers at once; one JSON line.

Runs in an environment of its own (`pip install hud==0.6.21 'typer<0.29'`):
python hud_run.py EPISODES CONCURRENCY
"""

import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hud import SubprocessRuntime, Taskset
from hud.agents.base import Agent
from hud_env import echo


class Instant(Agent):
    """Answers with the number that the prompt names."""

    async def __call__(self, run) -> None:  # noqa: ANN001 - typed by the peer
        """Nothing is sampled: what is measured is the platform."""
        run.trace.content = str(run.prompt).rsplit(" ", 1)[-1].strip("'\"]} ")


async def main() -> None:
    """Warm up once, then time the batch."""
    episodes, concurrency = int(sys.argv[1]), int(sys.argv[2])
    runtime = SubprocessRuntime(Path(__file__).with_name("hud_env.py"))
    tasks = [echo(number=number) for number in range(episodes)]
    for number, task in enumerate(tasks):
        task.slug = f"echo-{number}"
    await Taskset("warm", tasks[:2]).run(Instant(), runtime=runtime, max_concurrent=2)
    began = time.perf_counter()
    job = await Taskset("bench", tasks).run(Instant(), runtime=runtime, max_concurrent=concurrency)
    seconds = time.perf_counter() - began
    rewards = [run.reward for run in job.runs]
    print(
        json.dumps({"episodes": len(rewards), "seconds": seconds, "mean_reward": sum(rewards) / len(rewards)})
    )


if __name__ == "__main__":
    asyncio.run(main())
