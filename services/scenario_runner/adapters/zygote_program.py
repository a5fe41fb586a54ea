"""The zygote: a single-threaded process that imports an environment once, in its cell, and forks a child per
episode.

Runs as `python -m scenario_runner.adapters.zygote_program FD` with a SOCK_SEQPACKET socket to the fleet on
FD. One JSON object per packet. In: {"load": {...}} once; then the commands of `upcycle.environment.forking`,
fork with a "folder", and with "has_secrets" where the second descriptor holds them. Out: {"ready": pid} (its
description is in the file that load names) or {"broken": {...}}; then what that loop answers. It reaps every
child, kills what a dead episode left behind, and ends when the fleet hangs up.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenario_runner.adapters.cell import Cell, CellPlan
from scenario_runner.adapters.rehearsal import rehearse
from scenario_runner.adapters.sandbox import Limits, Sandbox
from upcycle.environment import Environment, load_environment
from upcycle.environment.channel.server import ChannelServer
from upcycle.environment.forking import MAX_PACKET_BYTES, Become, ForkLoop, adopt_orphans, die_with_parent
from upcycle.environment.server_secrets import from_memory
from upcycle.environment.source_files import SourceFiles, source_digest
from upcycle.environment.source_pack import unpack_source, write_source
from upcycle.errors import SourceRefused
from upcycle.modules import pin_sources


def become_episode(environment: Environment, sandbox: Sandbox, zygote: int) -> Become:
    """What a forked child does: enter the sandbox, then speak the control channel until it ends. It is an
    episode, or beside one what its MCP servers run in that name secrets: only the latter has the values."""

    def become(command: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        if command.get("has_secrets"):
            channel, secrets = descriptors
            values = from_memory(secrets)
            sandbox.enter(command["folder"], [channel], zygote, is_silent=True)
            _serve(environment.with_secrets(values), socket.socket(fileno=channel))
            return
        channel, *servers = descriptors
        sandbox.enter(command["folder"], descriptors, zygote)
        for descriptor in servers:
            environment.servers.attach_apart(socket.socket(fileno=descriptor))
        _serve(environment, socket.socket(fileno=channel))

    return become


def _serve(environment: Environment, sock: socket.socket) -> None:
    """Without what `asyncio.run` does at its end: the process ends with its loop, mostly by a signal."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(ChannelServer(environment).serve_socket(sock))


def load_pinned(packed: Path, root: str, attribute: str | None) -> tuple[Environment, str]:
    """(the environment, its source digest). What it imports later is what was packed too.

    root: where the source lies and is to be loaded from; "": it lies there no longer, and is laid beside the
    pack. Raises SourceRefused, SourceMoved, and what loading raises.
    """
    source = unpack_source(packed.read_bytes(), Path(root) if root else packed.parent / "source")
    if not root:
        write_source(source)
    pin_sources(source.root, source.files)
    entry = source.root / source.entry
    environment = load_environment(entry, attribute)
    for data in environment.data:
        if not _is_held(source, Path(environment.source).parent / data):
            raise SourceRefused(
                f"{environment.source}: data {data!r} is not read from its text",
                'write the call as Environment("name", data=["cases.json"])',
            )
    if root and environment.data and source_digest(entry) != source.digest:
        raise SourceMoved(f"{entry} was edited while it was loaded")  # modules are pinned, data is not
    return environment, source.digest


def _is_held(source: SourceFiles, data: Path) -> bool:
    name = os.path.relpath(data, source.root)
    return name == "." or any(file == name or file.startswith(f"{name}/") for file in source.files)


class SourceMoved(Exception):
    """Another source lies there than the one that was to be loaded."""

    kind = "source_changed"


def describe(environment: Environment, digest: str, sandbox: Sandbox) -> dict[str, Any]:
    """What the fleet and the planner need to know about an environment without forking it."""
    scenarios = {name: scenario.schema.parameters for name, scenario in environment.scenarios.items()}
    return {
        "name": environment.name,
        "version": environment.version,
        "scenarios": scenarios,
        "guided": [name for name, scenario in environment.scenarios.items() if scenario.is_guided],
        "generating": [name for name, scenario in environment.scenarios.items() if scenario.generates],
        "proposers": {
            name: scenario.proposer for name, scenario in environment.scenarios.items() if scenario.proposer
        },
        "left_overs": [name for name, scenario in environment.scenarios.items() if scenario.leaves_tasks],
        "tools": [tool.spec.to_row() for tool in environment.tools.values()],
        "attaches_tools": environment.attaches_tools,
        "secrets": environment.servers.secrets,
        "isolation": sandbox.isolation,
        "source_digest": digest,
    }


def _way_out(error: Exception) -> str:
    """Of what its cell refused to an import."""
    if not isinstance(error, PermissionError):
        return ""
    return (
        "; where its cell does not hold that, the operator adds it: SCENARIO_RUNNER_CELL_FILES, "
        "SCENARIO_RUNNER_CELL_FOLDERS, SCENARIO_RUNNER_CELL_PORTS"
    )


def warm_up() -> None:
    """Play an episode of ours, then `gc.freeze()`: a garbage collection in a child would otherwise write to,
    and thereby copy, the memory pages that it shares with the zygote."""
    rehearse()
    gc.collect()
    gc.freeze()


def main() -> None:
    """Entry point; see the module's docstring."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    load = json.loads(control.recv(MAX_PACKET_BYTES))["load"]
    try:
        limits, cell = Limits(**load["limits"]), Cell(CellPlan(**load["cell"]))
        sandbox = Sandbox(limits, cell, max_children=load["max_children"])
        die_with_parent(load["fleet_pid"])
        adopt_orphans()
        sandbox.confine()
        environment, digest = load_pinned(Path(load["pack"]), load["root"], load["attribute"] or None)
        sandbox.prepare(load["max_children"] if environment.servers.secrets else 0)
        # By file, because a packet is small and schemas need not be.
        Path(load["describe_to"]).write_text(json.dumps(describe(environment, digest, sandbox)))
    except Exception as error:
        detail = traceback.format_exc(limit=-8)
        broken = {
            "kind": getattr(error, "kind", "environment_broken"),
            "error": f"{type(error).__name__}: {error}{_way_out(error)}",
        }
        control.send(json.dumps({"broken": {**broken, "detail": detail[-8000:]}}).encode())
        return
    warm_up()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the fleet stops the zygotes itself
    loop = ForkLoop(control, become_episode(environment, sandbox, os.getpid()))
    control.send(json.dumps({"ready": os.getpid()}).encode())
    loop.run()


if __name__ == "__main__":
    main()
