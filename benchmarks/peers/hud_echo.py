"""The echo tasks with HUD 0.6.21 and an agent that asks a chat server; one JSON line.

python hud_echo.py URL TASKS CONCURRENT local|subprocess
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hud import LocalRuntime, SubprocessRuntime, Taskset
from hud.agents.base import Agent
from hud_env import echo
from openai import AsyncOpenAI

ENVIRONMENT = Path(__file__).with_name("hud_env.py")


class Asking(Agent):
    """Asks the server what the prompt asks."""

    def __init__(self, url: str) -> None:
        """The client is shared by all episodes."""
        super().__init__()
        self._client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")

    async def __call__(self, run) -> None:  # noqa: ANN001 - typed by the peer
        """One turn."""
        asked = [{"role": "user", "content": str(run.prompt)}]
        answer = await self._client.chat.completions.create(model="echo", messages=asked)
        run.trace.content = answer.choices[0].message.content


async def main() -> None:
    """Play them all."""
    url, count, concurrent, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    runtime = {"local": LocalRuntime, "subprocess": SubprocessRuntime}[kind](ENVIRONMENT)
    tasks = [echo(number=number) for number in range(count)]
    for number, task in enumerate(tasks):
        task.slug = f"echo-{number}"
    job = await Taskset("echo", tasks).run(Asking(url), runtime=runtime, max_concurrent=concurrent)
    rewards = [run.reward for run in job.runs]
    print(json.dumps({"episodes": len(rewards), "reward_mean": sum(rewards) / count}))


if __name__ == "__main__":
    asyncio.run(main())
