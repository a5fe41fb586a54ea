"""The servers of a stopped stack alone, for what works on its data while no service runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from local_stack.credentials import load_or_make
from local_stack.services import Plan, StackPorts, server_specs
from local_stack.supervisor import Supervisor


@asynccontextmanager
async def servers(data_dir: Path) -> AsyncIterator[Plan]:
    """NATS and S3 of the stack in `data_dir`, on free ports of the loopback, with the stack's lock held.
    Raises AlreadyRunning, GaveUp.
    """
    folder = await asyncio.to_thread(data_dir.absolute)
    plan = Plan(
        data_dir=folder,
        ports=StackPorts.pick(ephemeral=True),
        credentials=load_or_make(folder),
        engine="embedded",
        model=None,
        environment_roots=(),
        vllm_python=Path(),
        extra_env={},
    )
    async with Supervisor(plan.data_dir, server_specs(plan), describe=lambda: {"peers": plan.ports.peers()}):
        yield plan
