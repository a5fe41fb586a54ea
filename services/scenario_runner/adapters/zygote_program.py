"""The zygote: a single-threaded process that imports an environment once, and forks a child per episode.

Runs as `python -m scenario_runner.adapters.zygote_program FD` with a SOCK_SEQPACKET socket to the fleet on
FD. One JSON object per packet. In: {"load": {...}} once, {"fork": token, "folder": path} with the child's
end of a socketpair attached, {"kill": pid}. Out: {"ready": pid} (its description is in the file that load
names) or {"broken": {...}}, {"forked": token, "pid"} or {"unforked": token, "error"}, {"exited": pid,
"status"}. It reaps every child, kills what a dead episode left behind, and ends when the fleet hangs up.
"""

import asyncio
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from scenario_runner.adapters.rehearsal import rehearse
from scenario_runner.adapters.sandbox import Limits, Sandbox
from upcycle.environment import Environment, load_environment
from upcycle.environment.channel.server import ChannelServer
from upcycle.environment.source_files import SourceFiles, source_digest
from upcycle.environment.source_pack import unpack_source, write_source
from upcycle.errors import SourceRefused
from upcycle.modules import pin_sources

MAX_PACKET_BYTES = 128 * 1024


class Zygote:
    """The loop of the process. `run` returns when the fleet is gone."""

    def __init__(self, control: socket.socket, environment: Environment, sandbox: Sandbox) -> None:
        self._control = control
        self._environment = environment
        self._sandbox = sandbox
        self._pid = os.getpid()
        self._episodes: set[int] = set()
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Execute the fleet's commands until it closes the socket, then kill the episodes that are left."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._serve_one():
                break
        for pid in list(self._episodes):
            self._kill(pid)
        self._sweep_orphans()

    def _serve_one(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, 1)
        if not data:
            return False
        command = json.loads(data)
        if "kill" in command:
            self._kill(int(command["kill"]))
        elif "fork" in command:
            self._fork(command["fork"], command["folder"], descriptors[0])
        return True

    def _fork(self, token: str, folder: str, descriptor: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            self._send({"unforked": token, "error": str(error)})
            return
        if pid == 0:
            self._become_episode(folder, descriptor)
        os.close(descriptor)
        self._episodes.add(pid)
        self._send({"forked": token, "pid": pid})

    def _become_episode(self, folder: str, descriptor: int) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._sandbox.enter(folder, descriptor, self._pid)
            _serve(self._environment, socket.socket(fileno=descriptor))
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while True:
            # Kill the group before reaping: until then the kernel does not give the pid to another process.
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if dead is None:
                break
            self._kill_group(dead.si_pid)
            os.waitpid(dead.si_pid, 0)
            if dead.si_pid in self._episodes:
                self._episodes.discard(dead.si_pid)
                code = dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status
                self._send({"exited": dead.si_pid, "status": code})
        self._sweep_orphans()

    def _sweep_orphans(self) -> None:
        """Kill orphaned descendants of episodes that left their episode's session. The kernel gave them to
        this process, which is a subreaper.
        """
        for pid in _children_of(self._pid):
            if pid in self._episodes:
                continue
            try:
                if os.getsid(pid) not in self._episodes:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _kill(self, pid: int) -> None:
        if pid in self._episodes:
            self._kill_group(pid)

    def _kill_group(self, pid: int) -> None:
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except BrokenPipeError:
            return  # the fleet is gone; the next receive ends the loop


def _serve(environment: Environment, sock: socket.socket) -> None:
    """Without what `asyncio.run` does at its end: the process ends with its loop, mostly by a signal."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(ChannelServer(environment).serve_socket(sock))


def _children_of(pid: int) -> list[int]:
    with open(f"/proc/self/task/{pid}/children") as listed:
        return [int(word) for word in listed.read().split()]


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
        "tools": [tool.spec.to_json() for tool in environment.tools.values()],
        "attaches_tools": environment.attaches_tools,
        "isolation": sandbox.isolation,
        "source_digest": digest,
    }


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
        sandbox = Sandbox(Limits(**load["limits"]), max_children=load["max_children"])
        sandbox.die_with_parent(load["fleet_pid"])
        sandbox.adopt_orphans()
        environment, digest = load_pinned(Path(load["pack"]), load["root"], load["attribute"] or None)
        # By file, because a packet is small and schemas need not be.
        Path(load["describe_to"]).write_text(json.dumps(describe(environment, digest, sandbox)))
    except Exception as error:
        detail = traceback.format_exc(limit=-8)
        broken = {
            "kind": getattr(error, "kind", "environment_broken"),
            "error": f"{type(error).__name__}: {error}",
        }
        control.send(json.dumps({"broken": {**broken, "detail": detail[-8000:]}}).encode())
        return
    warm_up()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the fleet stops the zygotes itself
    zygote = Zygote(control, environment, sandbox)
    control.send(json.dumps({"ready": os.getpid()}).encode())
    zygote.run()


if __name__ == "__main__":
    main()
