"""Loading environments from files, and what importing the SDK costs."""

import subprocess
import sys
from pathlib import Path

import pytest

from upcycle.environment import load_environment
from upcycle.errors import DefinitionError, UnknownName

SOURCE = "from upcycle import Environment\nenv = Environment('{name}')\n"


def test_the_only_environment_of_a_file(environment_file: Path) -> None:
    env = load_environment(environment_file)
    assert env.name == "small-incident"
    assert env.source == str(environment_file)
    assert load_environment(environment_file) is env


def test_one_of_several_by_name_of_variable_or_environment(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(SOURCE.format(name="first") + "other = Environment('second')\n")
    assert load_environment(path, "env").name == "first"
    assert load_environment(path, "second").name == "second"
    with pytest.raises(DefinitionError, match=r"declares 2 environments \(first, second\)"):
        load_environment(path)
    with pytest.raises(UnknownName, match="it has first, second"):
        load_environment(path, "third")


def test_files_that_declare_none(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no such file"):
        load_environment(tmp_path / "missing.py")
    path = tmp_path / "empty.py"
    path.write_text("")
    with pytest.raises(DefinitionError, match="declares no environment"):
        load_environment(path)


def test_a_file_that_fails_to_import_can_be_mended_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mended.py"
    path.write_text("raise RuntimeError('broken')")
    with pytest.raises(RuntimeError, match="broken"):
        load_environment(path)
    path.write_text(SOURCE.format(name="mended") + "# other length, so that no stale bytecode is used\n")
    assert load_environment(path).name == "mended"


def test_a_file_in_a_package_is_imported_by_its_dotted_name(tmp_path: Path) -> None:
    package = tmp_path / "upcycle_test_project" / "incident"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "world.py").write_text("NAME = 'packaged'\n")
    (package / "env.py").write_text(
        "from upcycle import Environment\n"
        "from upcycle_test_project.incident.world import NAME\n"
        "env = Environment(NAME)\n"
    )
    assert load_environment(package / "env.py").name == "packaged"
    assert "upcycle_test_project.incident.env" in sys.modules
    assert "world" not in sys.modules


def test_importing_the_sdk_is_light() -> None:
    """Counted in modules, 75 today, because their time is the machine's."""
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from upcycle import Environment, Taskset, EvaluationResult\n"
        "heavy = {'torch', 'grpc', 'google.protobuf', 'pydantic', 'mcp', 'aiohttp', 'opentelemetry'}\n"
        "print(len(set(sys.modules) - before), sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    number, heavy = done.stdout.split(maxsplit=1)
    assert heavy.strip() == "[]"
    assert int(number) < 120


def test_unknown_names_of_the_package_list_the_known_ones() -> None:
    import upcycle

    with pytest.raises(AttributeError, match=r"it offers .*Environment.*eval"):
        upcycle.Enviroment  # noqa: B018
    assert {"Taskset", *upcycle.__all__} <= set(dir(upcycle))


def test_serving_prints_its_port_and_ends_on_sigterm(environment_file: Path) -> None:
    command = [sys.executable, "-m", "upcycle.environment.serve", str(environment_file), "--no-mcp"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("UPCYCLE_SERVE_PORT=")
        assert 0 < int(line.partition("=")[2]) < 65536
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_of_two_projects_each_means_its_own_env(tmp_path: Path) -> None:
    """As `upcycle init` writes them: tasks.py imports env.py beside it."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "env.py").write_text(SOURCE.format(name=name))
        (tmp_path / name / "tasks.py").write_text("from env import env\n")
    loaded = [load_environment(tmp_path / name / "tasks.py").name for name in ("first", "second")]
    assert loaded == ["first", "second"]
    (tmp_path / "first" / "more.py").write_text("from env import env\n")
    assert load_environment(tmp_path / "first" / "more.py").name == "first"
