"""The health check of containers says what /readyz says."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping

from service_kit.groups import EdgeSettings
from service_kit.http_limits import PortLimits
from service_kit.ops_http import OpsHttp, Readiness
from service_kit.ports import free_ports


async def asked(phase: str, reasons: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    server = OpsHttp(
        "127.0.0.1",
        0,
        lambda: Readiness("planner", phase, reasons),
        limits=PortLimits.of(EdgeSettings.model_construct()),
    )
    await server.start()
    try:
        return await asyncio.to_thread(command, server.port)
    finally:
        await server.stop()


def command(port: int) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "service_kit.ready_command", str(port)]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


async def test_a_ready_process_is_healthy() -> None:
    done = await asked("running", {})
    assert (done.returncode, done.stdout) == (0, "planner is ready\n")


async def test_each_reason_of_one_that_is_not_ready_is_said() -> None:
    done = await asked("running", {"bus": "not connected to NATS", "sql": "locked"})
    assert done.returncode == 1
    assert done.stdout == "planner is not ready (running): bus: not connected to NATS; sql: locked\n"


async def test_a_process_that_is_starting_is_not_healthy() -> None:
    done = await asked("starting", {})
    assert (done.returncode, done.stdout) == (1, "planner is not ready (starting): no reason\n")


def test_a_process_that_does_not_answer_is_named_by_its_address() -> None:
    port = free_ports(1)[0]
    done = command(port)
    assert done.returncode == 1
    assert f"no answer from http://127.0.0.1:{port}/readyz within 3 s" in done.stdout
    assert done.stderr == ""
