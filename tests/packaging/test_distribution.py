"""Two wheels hold every module once; the SDK alone is light and names what it lacks."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.packaging.venvs import PROJECTS, ROOT, build_wheel, clean_environment, environment, python_of, run

METADATA = {
    name: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for name, folder in PROJECTS.items()
}
LIGHT = (
    "blob_store chat_format checkpoint_registry.app engine_client event_bus grpc_edge local_stack",
    "model_gateway.app policy_engine.app policy_files retention reward_grader.app rollout_sampler.app",
    "scenario_runner.app service_kit sql_store trajectory_body trajectory_store.app upcycle upcycle.cli.main",
)
SCRIPTS = METADATA["upcycle-platform"]["scripts"]
NEED_TORCH = ("upcycle-grpo-trainer", "upcycle-embedded-engine")
HEAVY = ("torch", "transformers", "sqlalchemy", "alembic", "faststream", "nats", "minio", "aiohttp")
PYTHONS = ("3.12", "3.13", "3.14")
ENVIRONMENT = """
from upcycle import Environment, Taskset

env = Environment("sums")


@env.scenario("add")
async def add(a: int, b: int):
    answer = yield f"{a} + {b}?"
    yield 1.0 if answer == str(a + b) else 0.0


TASKS = Taskset("sums", [add(a=1, b=b) for b in range(3)])
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def python(code: str) -> str:
    """Run `code` in a fresh interpreter of this environment."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    return {name: build_wheel(name, folder) for name in PROJECTS}


@pytest.fixture(scope="session")
def sdk(wheels: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    """Programs of an environment that holds the SDK alone."""
    return environment([wheels["upcycle"]], request.config.cache.mkdir("sdk"))


@pytest.fixture(scope="session")
def platform(wheels: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    """Programs of an environment that holds the platform without its extras, so without torch."""
    return environment(list(wheels.values()), request.config.cache.mkdir("platform"))


def test_each_module_is_in_exactly_one_wheel(wheels: dict[str, Path]) -> None:
    packed = [name for wheel in wheels.values() for name in zipfile.ZipFile(wheel).namelist()]
    modules = sorted(name for name in packed if name.endswith(".py"))
    sources = {
        str(path.relative_to(root))
        for root in (ROOT / "libs", ROOT / "services")
        for path in root.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert modules == sorted(sources)


def test_the_sdk_wheel_holds_one_package_and_its_types(wheels: dict[str, Path]) -> None:
    packed = zipfile.ZipFile(wheels["upcycle"]).namelist()
    assert {name.split("/")[0] for name in packed} == {
        "upcycle",
        f"upcycle-{METADATA['upcycle']['version']}.dist-info",
    }
    assert "upcycle/py.typed" in packed


def test_both_distributions_have_one_version() -> None:
    versions = {name: project["version"] for name, project in METADATA.items()}
    assert len(set(versions.values())) == 1, versions
    assert f"upcycle=={versions['upcycle']}" in METADATA["upcycle-platform"]["dependencies"]


def test_the_sdk_alone_is_importable_and_its_command_answers(sdk: Path) -> None:
    run(sdk / "python", "-c", "import upcycle, upcycle.cli.main; upcycle.Environment; upcycle.TrainingClient")
    assert "eval" in run(sdk / "upcycle", "--help")
    assert METADATA["upcycle"]["version"] in run(sdk / "upcycle", "--version")


def test_the_sdk_brings_nothing_heavy_and_nothing_of_the_platform(sdk: Path) -> None:
    platform_packages = [path.name for path in (ROOT / "services").iterdir()]
    platform_packages += [path.name for path in (ROOT / "libs").iterdir() if path.name != "upcycle"]
    wanted = [*HEAVY, *(name for name in platform_packages if name.isidentifier())]
    code = f"import importlib.util as u; print([m for m in {wanted!r} if u.find_spec(m)])"
    assert run(sdk / "python", "-c", code).strip() == "[]"


@pytest.mark.parametrize("command", ["up", "demo", "doctor"])
def test_a_command_that_needs_the_platform_names_what_to_install(
    sdk: Path, command: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sdk / "upcycle", command],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install ./libs '.[local,train]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", PYTHONS)
def test_the_sdk_loads_a_tasks_file_on_each_python_of_this_machine(
    wheels: dict[str, Path], request: pytest.FixtureRequest, version: str, tmp_path: Path
) -> None:
    program = python_of(version)
    if program is None:
        pytest.skip(f"no Python {version} on this machine")
    programs = environment([wheels["upcycle"]], request.config.cache.mkdir(f"sdk-{version}"), python=program)
    (tmp_path / "tasks.py").write_text(ENVIRONMENT)
    said = subprocess.run(
        [programs / "upcycle", "eval", "tasks.py", "m", "--dry-run", "--json"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert '"tasks": 3' in said.stdout
    run(
        programs / "python", "-c", "import upcycle.rpc, upcycle.train, upcycle.evaluation, upcycle.run_config"
    )


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_program_of_the_platform_answers_help(platform: Path, script: str) -> None:
    if script in NEED_TORCH:
        module, function = SCRIPTS[script].split(":")
        said = python(f"import sys, {module} as m; sys.argv[1:] = ['--help']; m.{function}()")
    else:
        said = run(platform / script, "--help")
    service = script.removeprefix("upcycle-").replace("-", "_")
    assert script in said or service in said or "Usage" in said


def test_light_packages_import_no_torch() -> None:
    code = f"""
import importlib, sys
for package in {" ".join(LIGHT).split()!r}:
    importlib.import_module(package)
    heavy = [name for name in ("torch", "transformers", "vllm") if name in sys.modules]
    if heavy:
        sys.exit(f"{{package}} imports {{heavy}}")
"""
    python(code)


def test_importing_the_sdk_starts_nothing_and_loads_no_transport() -> None:
    loaded = python(
        "import sys, upcycle; print([m for m in ('grpc', 'nats', 'aiohttp', 'mcp') if m in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_an_environment_file_imports_no_client(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    code = f"""
import os, sys
sys.path.insert(0, {os.fspath(tmp_path)!r})
import env
clients = "agents evaluation platform rpc run_client run_config train cli api wire".split()
print([m for m in sys.modules if m == "grpc" or m.removeprefix("upcycle.").split(".")[0] in clients])
"""
    assert python(code).strip() == "[]"
