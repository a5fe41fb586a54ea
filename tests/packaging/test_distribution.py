"""The wheel holds every module, light packages stay light, every console script answers --help."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS = PROJECT["project"]["scripts"]
LIGHT = (
    "blob_store chat_format checkpoint_registry.app engine_client event_bus grpc_edge local_stack",
    "model_gateway.app policy_engine.app policy_files reward_grader.app rollout_sampler.app",
    "scenario_runner.app service_kit sql_store trajectory_body trajectory_store.app upcycle upcycle.cli.main",
)
HELP_LIMIT_S = 30


def python(code: str) -> str:
    """Run `code` in a fresh interpreter of this environment."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.slow
def test_every_module_is_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(root))
        for root in (ROOT / "libs", ROOT / "services")
        for path in root.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert sources - packed == set()


@pytest.mark.parametrize("package", " ".join(LIGHT).split())
def test_light_packages_import_no_torch(package: str) -> None:
    heavy = python(
        f"import sys, {package}; print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    assert heavy.strip() == "[]"


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_console_script_answers_help(script: str) -> None:
    program = Path(sys.executable).parent / script
    done = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=HELP_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    service = script.removeprefix("upcycle-").replace("-", "_")
    assert script in done.stdout or service in done.stdout or "Usage" in done.stdout


def test_importing_the_sdk_starts_nothing_and_loads_no_transport() -> None:
    loaded = python(
        "import sys, upcycle; print([m for m in ('grpc', 'nats', 'aiohttp', 'mcp') if m in sys.modules])"
    )
    assert loaded.strip() == "[]"
