"""An agent with a shell-like tool wants the secret of an MCP server of its environment: it reaches neither
the process that has it nor a text that holds it."""

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from tests.attacks.test_cell import BOTH, not_refused
from tests.attacks.worlds import SHELL
from tests.services.scenario_runner.fleets import TIMEOUTS, Fleet

from blob_store import MemoryBlobStore
from scenario_runner.adapters.cell import CellRules
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygotes import WarmEnvironment, ZygoteOptions
from scenario_runner.domain.environments import EnvironmentBroken, EpisodeFault, Opened, PythonEnvironment
from upcycle.environment import landlock
from upcycle.environment.source_files import read_source

pytestmark = pytest.mark.skipif(
    bool(landlock.lacking()), reason=f"this kernel lacks {', '.join(landlock.lacking())}"
)
CANARY = "canary-61f0e2b7a9"
KEYED = Path(__file__).parent / "environments" / "keyed.py"
SERVER = Path(__file__).parents[1] / "libs" / "upcycle" / "mcp_keyed.py"
REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r.*")


@pytest.fixture
def source(tmp_path: Path) -> PythonEnvironment:
    """Registered from its path."""
    for path in (SHELL, KEYED, SERVER):
        copyfile(path, tmp_path / path.name)
    return PythonEnvironment("keyed", str(tmp_path / "keyed.py"))


@asynccontextmanager
async def fleet_with(secrets: dict[str, str], rules: CellRules | None = None) -> AsyncIterator[Fleet]:
    """A fleet that gives servers these."""

    async def find(environment: str, named: Any) -> dict[str, str]:
        assert (environment, dict(named)) == ("keyed", {"TOKEN": "keyed"})
        return secrets

    sources = SourceStore(MemoryBlobStore())
    cell = rules or CellRules()
    options = ZygoteOptions(Limits(), 8, start_timeout_s=30, fork_timeout_s=30, cell=cell)
    forked = ForkedHost(options, TIMEOUTS, find_source=sources.find, find_secrets=find)
    fleet = Fleet(Hosts(forked, TcpHost(TIMEOUTS)), capacity=8, sources=sources)
    try:
        yield fleet
    finally:
        await fleet.leases.close_all()
        await fleet.hosts.stop()


def variables(pid: int) -> str:
    """Of a process."""
    return Path(f"/proc/{pid}/environ").read_text()


def holds(pid: int) -> bool:
    """Whether the memory of a process has the canary. A root test reads every process."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for found in map(REGION.match, maps.read().splitlines()):
            if found is None or int(found[1], 16) >= 1 << 47:
                continue
            memory.seek(int(found[1], 16))
            try:
                if CANARY.encode() in memory.read(int(found[2], 16) - int(found[1], 16)):
                    return True
            except OSError:
                continue  # a region that cannot be read
    return False


def files_with_it(zygote: WarmEnvironment) -> list[str]:
    """Below the folder of a zygote and its episodes."""
    found = (path for path in zygote._folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path) for path in found if CANARY.encode() in path.read_bytes()]


async def begun(fleet: Fleet, source: PythonEnvironment, args: str = "{}") -> tuple[Opened, WarmEnvironment]:
    """An episode, and the zygote that it came from."""
    return await fleet.open("repeat", args, source=source), await fleet.hosts.forked.zygote(source)


def attacks(server: dict[str, Any], holder: int) -> Iterator[tuple[str, str]]:
    """By what each wants: of the server's program, and of the process that started it."""
    for whose, pid in (("server", server["pid"]), ("holder", holder)):
        for name in ("environ", "mem", "maps", "auxv"):
            yield f"{whose}'s {name}", f"open('/proc/{pid}/{name}', 'rb').read()"
        yield (
            f"{whose}'s open files",
            f"[open(f'/proc/{pid}/fd/{{n}}') for n in os.listdir('/proc/{pid}/fd')]",
        )
        for name in ("cwd", "root"):
            yield f"{whose}'s {name}", f"os.listdir('/proc/{pid}/{name}')"
        yield f"signal to {whose}", f"os.kill({pid}, signal.SIGSTOP)"
    yield "the server's folder", f"os.listdir({server['folder']!r})"
    yield "planted in the server's folder", f"open({server['folder'] + '/planted'!r}, 'w')"


@pytest.mark.parametrize("is_deployed", [False, True])
async def test_the_process_that_has_it_is_out_of_reach(source: PythonEnvironment, is_deployed: bool) -> None:
    async with fleet_with({"TOKEN": CANARY}) as fleet:
        if is_deployed:
            files = read_source(source.path)
            await fleet.sources.keep(files)
            source = PythonEnvironment("keyed", f"deployed:{files.digest}")
        opened, zygote = await begun(fleet, source)
        server = json.loads((await fleet.call(opened, "where")).content)
        holder, episode = zygote.pids
        assert CANARY in variables(server["pid"]), "the server has it"
        made = dict(attacks(server, holder))
        assert await not_refused(fleet, opened, made, BOTH) == {}
        shown = (
            await fleet.call(opened, "shell", '{"line": "env; cat /proc/*/environ /proc/*/cmdline"}')
        ).content
        assert CANARY not in shown
        assert files_with_it(zygote) == []
        if os.geteuid() == 0:
            assert zygote._process is not None
            assert [holds(pid) for pid in (holder, episode, zygote._process.pid)] == [True, False, False]
        assert (await fleet.grade(opened)).reward == 1.0
        assert zygote.pids == []


async def test_no_text_that_leaves_an_episode_has_it(
    source: PythonEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with fleet_with({"TOKEN": CANARY}) as fleet:
        opened, zygote = await begun(fleet, source)
        assert 'Bearer [secret TOKEN] {"quoted": "[secret TOKEN]"} ' in opened.prompt[0]["content"]
        assert "401 for [secret TOKEN]" in opened.prompt[0]["content"]
        said = [await fleet.call(opened, name) for name in ("tell", "refuse")]
        grade = await fleet.grade(opened)
        assert grade.info == {"said": said[0].content}
        broken, _ = await begun(fleet, source, '{"breaks": true}')
        with pytest.raises(EnvironmentBroken) as failed:
            await fleet.grade(broken)
        assert "[secret TOKEN]" in str(failed.value)
        other, _ = await begun(fleet, source, json.dumps({"known": f"by another way: {CANARY}"}))
        assert "by another way: [secret TOKEN]" in other.prompt[0]["content"]
        texts = (opened, other, said, grade, failed.value, zygote.description, caplog.text)
        assert CANARY not in "\n".join(map(repr, texts))
        assert files_with_it(zygote) == []


async def test_the_next_episodes_begin_without_it_and_have_the_newest_value(
    source: PythonEnvironment,
) -> None:
    secrets = {"TOKEN": CANARY}
    async with fleet_with(secrets) as fleet:
        first, zygote = await begun(fleet, source)
        await fleet.call(first, "tell")
        await fleet.grade(first)
        secrets["TOKEN"] = "another-value-0c4"
        second, same = await begun(fleet, source)
        assert same is zygote
        holder, episode = zygote.pids
        if os.geteuid() == 0:
            assert [holds(pid) for pid in (holder, episode)] == [False, False]
        encoded = (await fleet.call(second, "tell_encoded")).content
        assert encoded == "YW5vdGhlci12YWx1ZS0wYzQ=", "what is written otherwise is not cut"


async def test_a_server_that_dies_is_the_environments_failure_and_says_no_secret(
    source: PythonEnvironment,
) -> None:
    async with fleet_with({"TOKEN": CANARY}) as fleet:
        opened, _ = await begun(fleet, source)
        with pytest.raises(EpisodeFault, match="MCP server 'keyed' is gone") as died:
            await fleet.call(opened, "die")
        assert died.value.failure_kind == "external_failure"
        assert CANARY not in str(died.value)


async def test_without_a_kernel_that_keeps_it_no_server_is_given_one(
    source: PythonEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenario_runner.adapters.cell.lacking", lambda: ["signals (Linux 6.12)"])
    async with fleet_with({"TOKEN": CANARY}) as fleet:
        with pytest.raises(EnvironmentBroken, match=r"does not keep the secrets of MCP servers.*signals"):
            await begun(fleet, source)
    async with fleet_with({"TOKEN": CANARY}, CellRules(mode="off")) as fleet:
        opened, _ = await begun(fleet, source)
        shown = (await fleet.call(opened, "shell", '{"line": "cat /proc/*/environ"}')).content
        assert "KEYED_TOKEN=[secret TOKEN]" in shown, "without a cell a tool reads it, and it is cut out"
