"""An agent with a shell-like tool attacks the platform from inside its episode: all refused, and the honest
episode is still graded. The same attacks succeed where the cell is off."""

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from tests.attacks.worlds import SECRET, Platform, deploy, fleet_over, neighbour, platform
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.adapters.cell import CellRules
from scenario_runner.domain.environments import EnvironmentBroken, Opened, PythonEnvironment
from upcycle.environment import landlock

pytestmark = pytest.mark.skipif(
    bool(landlock.lacking()), reason=f"this kernel lacks {', '.join(landlock.lacking())}"
)


def attacks_on_files(attacked: Platform, beside: Path) -> dict[str, str]:
    """By what each wants. beside: the folder of another episode."""
    data, project, key = attacked.data, attacked.project, str(attacked.data / "gateway.key")
    return {
        "state": f"open({str(data / 'state.json')!r}).read()",
        "key": f"open({key!r}).read()",
        "key, by a link": f"n = 'l' + str(os.getpid()); os.symlink({key!r}, n); open(n).read()",
        "key, by its inode": f"os.link({key!r}, 'h'); open('h').read()",
        "key, moved here": f"os.rename({key!r}, 'm')",
        "key, written": f"open({key!r}, 'a').close()",
        "key, emptied": f"os.truncate({key!r}, 0)",
        "database": f"sqlite3.connect({str(data / 'sql' / 'registry.sqlite')!r}).execute('vacuum')",
        "file beside the source": f"open({str(project / 'planted.py')!r}, 'w').close()",
        "source": f"open({str(project / 'shell.py')!r}, 'a').close()",
        "another episode's file": f"open({str(beside / 'diary')!r}).read()",
        "another episode's folder": f"open({str(beside / 'planted')!r}, 'w').close()",
        "the zygote's folder": f"open({str(beside.parent / 'source.zip')!r}, 'rb').read()",
        "temporary folder": f"os.listdir({str(beside.parent.parent)!r})",
    }


def attacks_on_processes(fleet_pid: int, zygote: int, neighbour_pid: int) -> dict[str, str]:
    """Memory, variables, files and lives of others."""
    made: dict[str, str] = {}
    for whose, pid in (("fleet", fleet_pid), ("zygote", zygote), ("neighbour", neighbour_pid)):
        made |= {
            f"{whose}'s memory": f"open('/proc/{pid}/mem', 'rb')",
            f"{whose}'s variables": f"open('/proc/{pid}/environ', 'rb').read()",
            f"{whose}'s layout": f"open('/proc/{pid}/maps').read()",
            f"{whose}'s folder": f"os.listdir('/proc/{pid}/cwd')",
            f"{whose}'s limits": f"import resource; resource.prlimit({pid}, resource.RLIMIT_CORE, (0, 0))",
            f"{whose}'s root": f"os.listdir('/proc/{pid}/root')",
            f"signal to {whose}": f"os.kill({pid}, signal.SIGCONT)",
            f"signal to {whose}, by descriptor": f"signal.pidfd_send_signal(os.pidfd_open({pid}), 18)",
        }
    return made


def attacks_on_ports(attacked: Platform) -> dict[str, str]:
    """What listens of the platform. The last ones get past a wall of TCP ports alone."""
    at = f"('127.0.0.1', {attacked.port})"
    return {
        "tcp": f"socket.create_connection({at})",
        "tcp over ipv6": f"socket.socket(socket.AF_INET6).connect(('::ffff:127.0.0.1', {attacked.port}))",
        "a port of its own": "socket.create_server(('127.0.0.1', 0))",
        "datagram": f"socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', {at})",
        "fast open": f"socket.socket().sendto(b'x', 0x20000000, {at})",
        "multipath": f"socket.socket(proto=262).connect({at})",
    }


def attacks_everywhere(attacked: Platform) -> dict[str, str]:
    """Of which nothing depends on the rules."""
    return {
        "abstract socket": f"socket.socket(socket.AF_UNIX).connect({attacked.abstract!r})",
        "raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
        "host of a virtual machine": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "core pattern": "open('/proc/sys/kernel/core_pattern', 'w')",
        "system": "open('/usr/planted', 'w')",
        "other root": "os.chroot('.')",
        "device": "os.mknod('d', 0o60666, 0x0100)",
    }


REFUSALS: Final = (
    "refused: PermissionError",
    "refused: OperationalError unable to open",  # SQLite's
    "refused: OSError [Errno 18]",  # a file may not leave what it is held to
)


async def results(fleet: Fleet, opened: Opened, codes: dict[str, str], tools: tuple[str, ...]) -> Any:
    """(tool, name) -> what came of it, in the episode's process and in a child of it."""
    found: dict[tuple[str, str], str] = {}
    for tool in tools:
        outcome = await fleet.call(opened, tool, json.dumps({"codes": list(codes.values())}))
        assert not outcome.is_error, outcome.content
        found |= {(tool, name): said for name, said in zip(codes, json.loads(outcome.content), strict=True)}
    return found


async def not_refused(fleet: Fleet, opened: Opened, codes: dict[str, str], tools: tuple[str, ...]) -> Any:
    """Those attacks that did something else."""
    found = await results(fleet, opened, codes, tools)
    return {key: said for key, said in found.items() if not said.startswith(REFUSALS)}


BOTH: Final = ("attempt", "attempt_in_a_child")


@pytest.mark.parametrize("is_deployed", [False, True])
async def test_every_attack_is_refused_and_the_episode_is_graded(tmp_path: Path, is_deployed: bool) -> None:
    with platform(tmp_path) as attacked:
        async with fleet_over(CellRules(hidden=(str(attacked.data),))) as fleet:
            source = await deploy(fleet, attacked) if is_deployed else attacked.source
            beside = await neighbour(fleet, source)
            opened = await fleet.open("guess", json.dumps({"secret": SECRET}), source=source)
            attacks = {
                **attacks_on_files(attacked, beside.folder),
                **attacks_on_processes(os.getpid(), beside.zygote, beside.pid),
                **attacks_everywhere(attacked),
                **(attacks_on_ports(attacked) if is_deployed else {}),
            }
            if is_deployed:
                attacks["project"] = f"open({str(attacked.project / 'cases.json')!r}).read()"
                attacks["shared memory"] = "open('/dev/shm/planted', 'w')"
                attacks["terminal"] = "os.openpty()"
                where = str(attacked.socket_path)
                attacks["unix socket"] = f"socket.socket(socket.AF_UNIX).connect({where!r})"
            assert await not_refused(fleet, opened, attacks, BOTH) == {}
            assert (await fleet.grade(opened, SECRET)).reward == 1.0
    assert sorted(path.name for path in attacked.project.iterdir()) == [".upcycle", "cases.json", "shell.py"]


async def test_the_attacks_succeed_where_the_cell_is_off(tmp_path: Path) -> None:
    with platform(tmp_path) as attacked:
        async with fleet_over(CellRules(mode="off")) as fleet:
            beside = await neighbour(fleet, attacked.source)
            opened = await fleet.open("guess", json.dumps({"secret": SECRET}), source=attacked.source)
            attacks = {
                **attacks_on_ports(attacked),
                **attacks_on_files(attacked, beside.folder),
                "signal to zygote": f"os.kill({beside.zygote}, signal.SIGCONT)",
            }
            done = await results(fleet, opened, attacks, ("attempt",))
            refused = {name for (_, name), said in done.items() if said != "done"}
            assert refused <= {"multipath", "fast open", "tcp over ipv6"}  # not in every kernel


async def test_a_child_does_not_read_the_answer_in_its_episodes_memory(tmp_path: Path) -> None:
    with platform(tmp_path) as attacked:
        async with fleet_over(CellRules()) as fleet:
            opened = await fleet.open("guess", json.dumps({"secret": SECRET}), source=attacked.source)
            attacks = {
                name: f"open(f'/proc/{{os.getppid()}}/{name}', 'rb').read(1)"
                for name in ("mem", "environ", "maps", "auxv")
            }
            assert await not_refused(fleet, opened, attacks, ("attempt_in_a_child",)) == {}


async def test_what_an_honest_episode_needs_it_has(tmp_path: Path) -> None:
    with platform(tmp_path) as attacked:
        async with fleet_over(CellRules(hidden=(str(attacked.data),))) as fleet:
            opened = await fleet.open("guess", json.dumps({"secret": SECRET}), source=attacked.source)
            needs = {
                "folder": "n = str(os.getpid()); open(n, 'w').close(); os.mkdir('d' + n); "
                "os.rename(n, f'd{n}/a')",
                "data beside the source": f"open({str(attacked.project / 'cases.json')!r}).read()",
                "its source's folder": f"assert 'cases.json' in os.listdir({str(attacked.project)!r})",
                "a server of its own": "s = socket.create_server(('127.0.0.1', 0)); "
                "socket.create_connection(s.getsockname())",
                "a name": "socket.getaddrinfo('localhost', 80)",
                "locks of multiprocessing": "import multiprocessing as m; m.Lock()",
                "a child of its own": "import subprocess; subprocess.Popen(['sleep', '9']).kill()",
                "a terminal": "os.openpty()",
                "limits of its own": "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, 256))",
                "randomness": "os.urandom(8); open('/dev/urandom', 'rb').read(8)",
                "certificates": "import ssl; ssl.create_default_context()",
            }
            done = await results(fleet, opened, needs, BOTH)
            assert {key: said for key, said in done.items() if said != "done"} == {}
            line = "echo $HOME >it && grep . <it && bash -c 'cat <(echo 1) >/dev/stdout' && ls /proc/self/fd"
            code, said = json.loads((await fleet.call(opened, "shell", json.dumps({"line": line}))).content)
            assert code == 0, said


async def test_the_operator_opens_ports_files_and_folders(tmp_path: Path) -> None:
    readable, writable = tmp_path / "cases", tmp_path / "notes"
    for folder in (readable, writable):
        folder.mkdir()
        (folder / "one").write_text("1")
    with platform(tmp_path) as attacked, platform(tmp_path / "other") as other:
        rules = CellRules(files=(str(readable),), folders=(str(writable),), ports=(attacked.port,))
        async with fleet_over(rules) as fleet:
            source = await deploy(fleet, attacked)
            opened = await fleet.open("guess", json.dumps({"secret": SECRET}), source=source)
            granted = {
                "file": f"open({str(readable / 'one')!r}).read()",
                "folder": f"open({str(writable / 'two')!r}, 'w').close()",
                "port": f"socket.create_connection(('127.0.0.1', {attacked.port}))",
            }
            assert set((await results(fleet, opened, granted, BOTH)).values()) == {"done"}
            refused = {**attacks_on_ports(other), "file": f"open({str(readable / 'two')!r}, 'w')"}
            assert await not_refused(fleet, opened, refused, BOTH) == {}
            assert os.listdir(writable)


async def test_the_import_is_in_the_cell(tmp_path: Path) -> None:
    with platform(tmp_path) as attacked:
        own = attacked.project / "shell.py"
        own.write_text(f"open({str(attacked.data / 'gateway.key')!r}).read()\n{own.read_text()}")
        async with fleet_over(CellRules(hidden=(str(attacked.data),))) as fleet:
            with pytest.raises(EnvironmentBroken, match="SCENARIO_RUNNER_CELL_FILES"):
                await fleet.open("guess", '{"secret": ""}', source=attacked.source)


async def test_a_kernel_that_cannot_refuses_what_was_sent_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 4)
    with platform(tmp_path) as attacked:
        async with fleet_over(CellRules()) as fleet:
            with pytest.raises(EnvironmentBroken, match=r"signals \(Linux 6.12\).*CELL=best_effort"):
                await fleet.open("guess", '{"secret": ""}', source=await deploy(fleet, attacked))
            await _plays(fleet, attacked.source)
        async with fleet_over(CellRules(mode="best_effort")) as fleet:
            await _plays(fleet, await deploy(fleet, attacked))


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_what_an_old_kernel_holds_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: version)
    with platform(tmp_path) as attacked:
        async with fleet_over(CellRules(mode="best_effort", hidden=(str(attacked.data),))) as fleet:
            opened = await fleet.open("guess", '{"secret": ""}', source=attacked.source)
            code = {"state": f"open({str(attacked.data / 'state.json')!r}).read()"}
            (said,) = (await results(fleet, opened, code, ("attempt",))).values()
            assert said.startswith("refused: PermissionError" if version else "done")


async def _plays(fleet: Fleet, source: PythonEnvironment) -> None:
    opened = await fleet.open("guess", json.dumps({"secret": SECRET}), source=source)
    assert (await fleet.grade(opened, SECRET)).reward == 1.0
