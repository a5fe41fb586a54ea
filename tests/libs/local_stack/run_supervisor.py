"""A supervisor in a process of its own, to be killed: `run_supervisor.py FOLDER PORT`; says when it is up."""

import asyncio
import sys
from pathlib import Path

from local_stack.health import http_probe
from local_stack.spec import ProcessSpec
from local_stack.supervisor import Supervisor


async def main() -> None:
    folder, port = Path(sys.argv[1]), sys.argv[2]
    program = Path(__file__).with_name("toy_program.py")
    spec = ProcessSpec(
        "toy",
        (sys.executable, "-I", "-S", str(program)),
        env={"PORT": port, "MODE": "parent", "NAME": "toy", "STOP_LOG": str(folder / "stops")},
        ready=http_probe(f"http://127.0.0.1:{port}/readyz"),
    )
    async with Supervisor(folder, [spec]):
        print("up", flush=True)
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main())
