"""What is packed of an environment, what stays here, and what is refused before anything is sent."""

import os
from pathlib import Path
from typing import Final

import pytest

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.cli.main import run
from upcycle.deploying import DeployRefused, PackedEnvironment, as_deployed, deploy, looks_secret, package
from upcycle.environment import load_environment
from upcycle.environment.source_files import SourceLimits, read_source
from upcycle.environment.source_pack import unpack_source
from upcycle.errors import SourceRefused
from upcycle.platform import PEERS, Addresses, Platform
from upcycle.task_rows import EnvironmentRef, Task
from upcycle.tasks import Taskset
from upcycle.user_settings.files import SettingsRefused

ENV: Final = """
from upcycle import Environment
from prices import PRICE

env = Environment("shop", data=[{data}])


@env.scenario("buy")
async def buy():
    answer = yield "buy"
    yield float(answer == PRICE)
"""


def write(folder: Path, data: str = "", **others: str) -> Path:
    """An environment of two modules."""
    (folder / "env.py").write_text(ENV.replace("{data}", data))
    (folder / "prices.py").write_text("PRICE = '3'\n")
    for name, text in others.items():
        (folder / name).write_text(text)
    return folder / "env.py"


def packed(folder: Path, data: str = "") -> PackedEnvironment:
    file = write(folder, data)
    return package(load_environment(file), file)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, an empty one; no platform is found from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UPCYCLE_PROFILE", "")
    return tmp_path


def test_the_pack_is_what_a_run_packs(folder: Path) -> None:
    made = packed(folder)
    assert made.digest == read_source(folder / "env.py").digest
    found = unpack_source(made.packed, Path("/"))
    assert (found.entry, sorted(found.files), found.digest) == (
        "env.py",
        ["env.py", "prices.py"],
        made.digest,
    )
    assert made.left_out == ()


def test_files_that_look_like_keys_stay_here_and_are_named(folder: Path) -> None:
    (folder / ".env").write_text("TOKEN=abc")
    (folder / "cases").mkdir()
    for name in ("cases/one.json", "cases/.env.production", "cases/server.pem", "cases/.env.example"):
        (folder / name).write_text(name)
    made = packed(folder, "'cases'")
    assert sorted(made.files.files) == ["cases/.env.example", "cases/one.json", "env.py", "prices.py"]
    assert made.left_out == (".env", "cases/.env.production", "cases/server.pem")
    assert b"TOKEN" not in made.packed


def test_an_environment_that_needs_such_a_file_is_refused(folder: Path) -> None:
    (folder / ".env").write_text("TOKEN=abc")
    with pytest.raises(DeployRefused, match=r"env\.py: data '\.env' looks like a file with keys"):
        packed(folder, "'.env'")


@pytest.mark.parametrize("name", ["a/.ssh/known", "ID_RSA", "x.key", "b/credentials.json", "prod.env"])
def test_names_of_files_with_keys(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["env.py", "secrets.py", "keys.json", "a/environment.yml", "key.txt"])
def test_names_of_other_files(name: str) -> None:
    assert not looks_secret(name)


def test_a_pack_that_is_too_large_names_its_largest_files(folder: Path) -> None:
    for number in range(4):
        (folder / f"part{number}.bin").write_bytes(os.urandom(1000 * (number + 1)))
    file = write(folder, "'part0.bin', 'part1.bin', 'part2.bin', 'part3.bin'")
    with pytest.raises(DeployRefused) as caught:
        package(load_environment(file), file, max_bytes=5000)
    said = str(caught.value)
    assert "limit 5,000" in said
    assert "part3.bin (4,000 bytes), part2.bin (3,000 bytes), part1.bin (2,000 bytes);" in said
    with pytest.raises(SourceRefused, match=r"its largest files: part3\.bin \(4,000 bytes\)"):
        read_source(file, SourceLimits(total_bytes=9_000))


def test_a_link_that_leaves_the_folder_is_refused(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-outside.txt"
    outside.write_text("theirs")
    (folder / "cases.txt").symlink_to(outside)
    with pytest.raises(SourceRefused, match="outside"):
        packed(folder, "'cases.txt'")


TASKS_FILE: Final = {
    "shop_env.py": """
from upcycle import Environment
env = Environment("shop")
@env.scenario()
async def ask(q: str):
    answer = yield q
    yield float(answer == q)
""",
    "tasks.py": "from shop_env import ask\n\ntasks = [ask.task(q='?')]\n",
}


@pytest.mark.parametrize(
    ("files", "arguments", "says"),
    [
        ({}, (), "has no env.py: it has no Python file"),
        ({"shop.py": "import os\n"}, (), "has no env.py: it has shop.py; name the file: upcycle deploy FILE"),
        ({"env.py": "import os\n\nimport not_there\n"}, (), "env.py:3: ModuleNotFoundError"),
        ({"env.py": "x = (\n"}, (), "env.py:1: SyntaxError"),
        ({"env.py": "x = 1\n"}, (), "env.py declares no environment; write env = Environment("),
        (TASKS_FILE, ("tasks.py",), "tasks.py declares no environment; its tasks are of environment 'shop'"),
        (TASKS_FILE, ("tasks.py",), "name the file that declares it, "),
        ({"env.py": "from upcycle import Environment\ne = Environment('e')\n"}, (), "declares no scenario"),
        ({"notes.txt": "x"}, ("notes.txt",), "notes.txt is no Python file"),
        ({}, ("absent.py",), "no such file or folder: absent.py"),
    ],
)
def test_what_is_no_environment_is_refused_before_anything_is_sent(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    assert run(["deploy", *arguments]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_a_dry_run_needs_no_platform(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder)
    (folder / ".env").write_text("TOKEN=abc")
    assert run(["deploy", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"shop: source {read_source(folder / 'env.py').digest}, 2 files, ")
    assert said.err == "left out: .env looks like a file with keys\n"
    assert run(["deploy"]) == 4
    assert "no running platform" in capsys.readouterr().err


def test_an_operators_key_that_others_can_read_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = folder / "operator.key"
    key.write_text("a-key\n")
    key.chmod(0o644)
    found = Addresses({}, "here", operator_key_file=key)
    with pytest.raises(SettingsRefused, match=r"operator\.key may hold keys.*chmod 600"):
        found.platform_key()
    key.chmod(0o600)
    monkeypatch.setenv("UPCYCLE_OPERATOR_KEY", "another")
    assert found.platform_key() == "a-key"  # the stack's own, where its folder is known
    key.unlink()
    assert found.platform_key() == "another"
    monkeypatch.setenv("UPCYCLE_USER_KEY", "a-users")
    assert found.platform_key() == "another"
    monkeypatch.delenv("UPCYCLE_OPERATOR_KEY")
    assert found.platform_key() == "a-users"
    monkeypatch.delenv("UPCYCLE_USER_KEY")
    assert found.platform_key() is None


def test_tasks_of_a_deployed_environment_are_the_same_tasks() -> None:
    tasks = Taskset("mine", [Task(EnvironmentRef("shop", "env.py"), "buy")], "held_out")
    moved = as_deployed(tasks, "ab" * 32)
    assert moved.environment == EnvironmentRef("shop", f"deployed:{'ab' * 32}")
    assert (moved.digest, moved.name, moved.split) == (tasks.digest, "mine", "held_out")
    with pytest.raises(SourceRefused, match="'latest' names no deployed environment"):
        as_deployed(tasks, "latest")
    for short in ("ab" * 6, f"deployed:{'ab' * 6}"):
        with pytest.raises(SourceRefused, match="only the beginning of a source digest; give all 64"):
            as_deployed(tasks, short)
    with pytest.raises(SourceRefused, match="an environment that a platform has"):
        load_environment(moved.environment.path)


async def test_a_platform_of_an_earlier_version_is_named(folder: Path) -> None:
    server = GrpcServer("127.0.0.1", 0, OPEN)  # answers UNIMPLEMENTED, as one that lacks the method
    await server.start()
    try:
        async with Platform(Addresses(dict.fromkeys(PEERS, server.address), "here")) as platform:
            with pytest.raises(DeployRefused, match=r"of a version that takes no environments"):
                await deploy(platform, packed(folder))
    finally:
        await server.stop()
