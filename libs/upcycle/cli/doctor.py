"""`upcycle doctor`."""

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from upcycle.cli.bus import knows_a_bus
from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json, result_console
from upcycle.cli.platform_needed import require_platform
from upcycle.environment import landlock
from upcycle.errors import Unavailable, UpcycleError
from upcycle.platform import ONLY_PEERS, PEERS, Platform, PlatformNotFound, find_addresses

MIN_FREE_BYTES = 2 * 1024**3
PROBE_TIMEOUT_S = 2.0
UNNAMED: Final = ("rollout_sampler", "reward_grader", "model_gateway", "policy_engine", "provision_watch")
"""Processes that the addresses of the public gRPC services do not tell."""
MAX_MODELS: Final = 5
NO_MODEL: Final = (
    "none is known; `upcycle models create FOLDER --tiny` makes one, "
    "`upcycle up --model NAME --model-dir FOLDER` or `upcycle models import FOLDER --name NAME` brings it"
)
MARKS = {"ok": "[green]✓[/green]", "warn": "[yellow]![/yellow]", "fail": "[red]✗[/red]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Literal["ok", "warn", "fail"]
    detail: str


async def doctor(*, as_json: JsonFlag = False) -> int:
    """Check this machine, and the running platform if there is one.

    :param as_json: one JSON line per finding.
    """
    require_platform("doctor")
    findings = [check() for check in MACHINE_CHECKS]
    findings += await platform_findings()
    findings += await bus_findings()
    console = result_console()
    for finding in findings:
        if as_json:
            print_json(
                "finding", {"what": finding.what, "verdict": finding.verdict, "detail": finding.detail}
            )
        else:
            text = f"{MARKS[finding.verdict]} {finding.what:<18} {finding.detail}"
            console.print(text, soft_wrap=True)
    return Exit.FAILED if any(finding.verdict == "fail" for finding in findings) else Exit.OK


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    verdict: Literal["ok", "fail"] = "ok" if sys.version_info >= (3, 11) else "fail"
    return Finding("python", verdict, f"{found} (3.11 or newer is needed)")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding("cores", "ok" if cores >= 2 else "warn", f"{cores} (the demo wants 2 to 4)")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    return Finding("disk", "ok" if free >= MIN_FREE_BYTES else "fail", f"{free / 1024**3:.1f} GiB free here")


def _binary(what: str, program: str) -> Callable[[], Finding]:
    def check() -> Finding:
        path = shutil.which(
            program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        )
        if path is None:
            return Finding(
                what, "warn", f"no {program} on PATH; in a checkout: pip install ./libs '.[local]'"
            )
        return Finding(what, "ok", path)

    return check


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", "warn", "absent: this machine can neither train nor run the embedded engine")
    return Finding("torch", "ok", importlib.metadata.version("torch"))


def _gpu() -> Finding:
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    return Finding("gpu", "ok", ", ".join(devices) or "none (not needed)")


def _cells() -> Finding:
    """Whether environments played on this machine are held in their cells."""
    missing = landlock.lacking()
    if not missing:
        return Finding(
            "cells", "ok", f"the kernel holds environments in theirs (Landlock {landlock.version()})"
        )
    way_out = "deployed environments are refused here unless SCENARIO_RUNNER_CELL=best_effort"
    return Finding("cells", "warn", f"the kernel cannot hold back {', '.join(missing)}; {way_out}")


MACHINE_CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _cores,
    _disk,
    _binary("nats", "nats-server"),
    _binary("s3", "weed"),
    _torch,
    _gpu,
    _cells,
)


async def platform_findings() -> list[Finding]:
    """Of the platform that is configured or runs here: one for each public service, one for each process that
    is not ready, and what was not asked."""
    try:
        addresses = find_addresses()
    except PlatformNotFound as error:
        return [Finding("platform", "warn", str(error)), Finding("models", "warn", NO_MODEL)]
    async with Platform(addresses) as platform:
        where = {service: addresses.peers[peer] for peer, service in PEERS.items()}
        asked = (_probe(name, where[name], call) for name, call in _calls(platform).items())
        calls = await asyncio.gather(*asked)
        calls += await _models(platform)
        if addresses.state_file is None:
            others = _not_asked()
        else:
            others = await process_findings(json.loads(addresses.state_file.read_text())["processes"])
    return [Finding("platform", "ok", f"found through {addresses.source}"), *calls, *others]


async def _models(platform: Platform) -> list[Finding]:
    """What can be evaluated and trained; nothing where the registry does not answer."""
    import grpc

    from upcycle.api.registry.v1.service_pb2 import ListModelsRequest

    try:
        listed = (await platform.registry.ListModels(ListModelsRequest(), timeout=PROBE_TIMEOUT_S)).models
    except grpc.aio.AioRpcError:
        return []
    names = [f"{one.model} v{one.head_version}" for one in listed]
    more = [f"and {len(names) - MAX_MODELS} more"] if len(names) > MAX_MODELS else []
    return (
        [Finding("models", "ok", ", ".join([*names[:MAX_MODELS], *more]))]
        if names
        else [Finding("models", "warn", NO_MODEL)]
    )


def _not_asked() -> list[Finding]:
    """Of a platform of which nothing but the public addresses is known."""
    why = f"not asked, because {ONLY_PEERS} does not name them; GET /readyz at the HTTP_PORT of each"
    found = [Finding("processes", "warn", f"{', '.join(UNNAMED)}: {why}")]
    return found if knows_a_bus() else [*found, Finding("bus", "warn", "not asked, set UPCYCLE_BUS_URL")]


async def process_findings(processes: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Asks all processes of a state.json at once: one finding for each that is not ready, or that all are."""
    found = await asyncio.gather(*map(_ask, processes))
    unwell = [finding for finding in found if finding is not None]
    return unwell or [Finding("processes", "ok", f"all {len(found)} are ready")]


async def _ask(process: Mapping[str, Any]) -> Finding | None:
    from local_stack.health import ask_health, health_url

    name = process["name"]
    url = health_url(name, process["http_port"])
    try:
        answer = await ask_health(url)
    except (OSError, TimeoutError, ValueError) as error:
        return Finding(
            name, "fail", f"{url} does not answer ({type(error).__name__}), process {process['pid']}"
        )
    if not answer.why or name == "s3":  # an object store may refuse a request without a key
        return None
    return Finding(name, "warn" if answer.is_alarm else "fail", answer.why)


async def bus_findings() -> list[Finding]:
    """How full each stream is, and for how long it holds; none where no bus is configured or runs here."""
    from upcycle.cli.bus import holdings

    if not knows_a_bus():
        return []
    try:
        found = await holdings()
    except UpcycleError as error:
        return [Finding("bus", "fail", str(error))]
    return [Finding(what, "ok" if is_well else "warn", detail) for what, is_well, detail in found]


def _calls(platform: Platform) -> dict[str, Awaitable[object]]:
    from upcycle.api.registry.v1.service_pb2 import ListModelsRequest
    from upcycle.api.taskset.v1.service_pb2 import ListTasksetsRequest
    from upcycle.api.training.v1.service_pb2 import ListLossesRequest
    from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest

    return {
        "scenario_runner": platform.tasksets.ListTasksets(ListTasksetsRequest(), timeout=PROBE_TIMEOUT_S),
        "trajectory_store": platform.trajectories.GetLedger(GetLedgerRequest(), timeout=PROBE_TIMEOUT_S),
        "grpo_trainer": platform.training.ListLosses(ListLossesRequest(), timeout=PROBE_TIMEOUT_S),
        "checkpoint_registry": platform.registry.ListModels(ListModelsRequest(), timeout=PROBE_TIMEOUT_S),
    }


async def _probe(name: str, address: str, call: Awaitable[object]) -> Finding:
    import grpc

    from upcycle.rpc.errors import remote_error

    began = asyncio.get_running_loop().time()
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if isinstance(found := remote_error("", error), Unavailable):
            return Finding(name, "fail", f"does not answer at {address}")
        return Finding(name, "fail", found.message or f"answers {error.code().name} at {address}")
    return Finding(name, "ok", f"answers in {(asyncio.get_running_loop().time() - began) * 1e3:.0f} ms")
