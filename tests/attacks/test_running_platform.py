"""What a running platform shows to others of its machine, and to the programs that it starts."""

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.attacks.conftest import Attacked
from tests.attacks.strangers import as_stranger, read_as_stranger
from tests.platform_recipes import EXAMPLE, TRAIN_TASKSET

from upcycle.cli.tasksets import load_source
from upcycle.platform import Platform

CHILDREN = {"nats-server": 1, "weed": 1, "embedded_engine": 2, "zygote_program": 1}


def test_nothing_that_a_running_platform_writes_is_open_to_others(attacked: Attacked) -> None:
    modes = dict(modes_of(attacked.data_dir, *attacked.data_dir.rglob("*")))
    # SeaweedFS gives the sizes of its volumes a mode of its own; the folder above is closed.
    is_open = {path: oct(mode) for path, mode in modes.items() if mode & 0o077 and not path.endswith(".vif")}

    assert any(path.endswith(".sqlite") for path in modes)
    assert is_open == {}


def modes_of(*paths: Path) -> Iterator[tuple[str, int]]:
    """The mode of each file and folder. One that is renamed or removed while it is looked at is left out."""
    for path in paths:
        with suppress(FileNotFoundError):
            found = path.lstat().st_mode
            if not stat.S_ISLNK(found):
                yield str(path), stat.S_IMODE(found)


@as_stranger
def test_a_stranger_reads_nothing_of_a_running_platform(attacked: Attacked) -> None:
    assert read_as_stranger(attacked.data_dir) == []


async def test_no_program_that_is_not_a_service_has_a_secret_in_its_variables(attacked: Attacked) -> None:
    """Its variables are what each of its children, and an intruder, reads first."""
    async with Platform(attacked.addresses) as platform:
        await load_source(str(EXAMPLE / "tasks.py"), TRAIN_TASKSET).register(platform)  # starts a zygote

    found = {pid: command for pid, command in children(attacked.state["pid"]) if not is_service(command)}

    for program, least in CHILDREN.items():
        assert sum(program in command for command in found.values()) >= least, f"{program}: {found}"
    leaks = {
        f"{name} in {command[:80]}"
        for pid, command in found.items()
        for name, secret in attacked.secrets.items()
        if secret in variables(pid)
    }
    assert leaks == set()


def is_service(command: str) -> bool:
    programs = {Path(word).name for word in command.split()}
    return any(program.startswith("upcycle-") for program in programs)


def variables(pid: int) -> str:
    return read_of_process(Path(f"/proc/{pid}/environ"))


def children(pid: int) -> Iterator[tuple[int, str]]:
    """Every process below this one, with its command. One that ends while it is looked at is left out."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in read_of_process(listed).split():
            if command := read_of_process(Path(f"/proc/{child}/cmdline")):
                yield int(child), command.replace("\0", " ")
                yield from children(int(child))


def read_of_process(path: Path) -> str:
    """What the file of a process or a thread says; nothing once that has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
