"""A platform to attack: its data below the environment's own folder, its ports, another episode."""

import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Final

from tests.services.scenario_runner.fleets import TIMEOUTS, Fleet

from blob_store import MemoryBlobStore
from scenario_runner.adapters.cell import CellRules
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.domain.environments import PythonEnvironment
from upcycle.environment.source_files import read_source

SHELL: Final = Path(__file__).parent / "environments" / "shell.py"
SECRET: Final = "canary-5d1f"


@dataclass(frozen=True, slots=True)
class Platform:
    """Of a laptop, as `upcycle up` lays it out in a project. port: where something of it listens;
    socket_path: the same without an address; abstract: without a file."""

    project: Path
    data: Path
    port: int
    socket_path: Path
    abstract: str

    @property
    def source(self) -> PythonEnvironment:
        """The environment, registered from its path."""
        return PythonEnvironment("shell", str(self.project / "shell.py"))


@contextmanager
def platform(folder: Path) -> Iterator[Platform]:
    """With its ports open."""
    project = folder / "project"
    data = project / ".upcycle" / "up"
    (data / "sql").mkdir(parents=True)
    copyfile(SHELL, project / "shell.py")
    (project / "cases.json").write_text("[]")
    for name in ("state.json", "gateway.key"):
        (data / name).write_text(SECRET)
    with sqlite3.connect(data / "sql" / "registry.sqlite") as database:
        database.execute("create table task (secret)")
    database.close()
    abstract = f"\0upcycle {folder}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, _unix(str(folder / "s")), _unix(abstract):
        yield Platform(project, data, tcp.getsockname()[1], folder / "s", abstract)


@contextmanager
def _unix(address: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        yield


@asynccontextmanager
async def fleet_over(rules: CellRules) -> AsyncIterator[Fleet]:
    """Environments in cells by these rules."""
    sources = SourceStore(MemoryBlobStore())
    options = ZygoteOptions(Limits(), 8, start_timeout_s=30, fork_timeout_s=30, cell=rules)
    hosts = Hosts(ForkedHost(options, TIMEOUTS, find_source=sources.find), TcpHost(TIMEOUTS))
    fleet = Fleet(hosts, capacity=8, sources=sources)
    try:
        yield fleet
    finally:
        await fleet.leases.close_all()
        await hosts.stop()


async def deploy(fleet: Fleet, attacked: Platform) -> PythonEnvironment:
    """The environment, as `upcycle deploy` sends it."""
    files = read_source(attacked.source.path)
    await fleet.sources.keep(files)
    return PythonEnvironment("shell", f"deployed:{files.digest}")


@dataclass(frozen=True, slots=True)
class Beside:
    """Another episode of the same zygote. folder: its own, with a diary in it."""

    folder: Path
    pid: int
    zygote: int


async def neighbour(fleet: Fleet, source: PythonEnvironment) -> Beside:
    """One that has begun."""
    opened = await fleet.open("guess", '{"secret": ""}', source=source)
    line = json.dumps({"line": f"echo {SECRET} > diary; pwd"})
    _, folder = json.loads((await fleet.call(opened, "shell", line)).content)
    zygote = await fleet.hosts.forked.zygote(source)
    assert zygote._process is not None
    return Beside(Path(folder.strip()), zygote.pids[-1], zygote._process.pid)
