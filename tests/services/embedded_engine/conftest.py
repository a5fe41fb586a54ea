"""Real engine processes: the example's policy, and the one that always calls a tool."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from openai import OpenAI
from tests.services.policy_engine.policies import Shape, make_tool_caller

MODEL = "incident"
POLICY = Path(__file__).resolve().parents[3] / "examples" / "incident" / "policy"


@dataclass(frozen=True)
class EngineProcess:
    """A process that serves MODEL."""

    url: str
    pid: int

    @property
    def client(self) -> OpenAI:
        """The unmodified client; what is refused is refused at once."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


@contextmanager
def running_engine(directory: Path, log: Path, *options: str) -> Iterator[EngineProcess]:
    """Until the block ends; its port is the first line that it prints."""
    program = [sys.executable, "-m", "embedded_engine", "--model", str(directory)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*program, "--served-model-name", MODEL, *options], stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first, log.read_text()
        yield EngineProcess(f"http://127.0.0.1:{orjson.loads(first)['port']}", process.pid)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Serves the example's policy."""
    with running_engine(POLICY, tmp_path_factory.mktemp("engine") / "log") as running:
        yield running


@pytest.fixture(scope="session")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Serves the example's policy with a vocabulary that cannot write the byte E4."""
    folder = tmp_path_factory.mktemp("lacking")
    shutil.copytree(POLICY, folder / "v0")
    tokenizer = json.loads((folder / "v0" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["qqqq"] = vocabulary.pop("\u00e4")
    (folder / "v0" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with running_engine(folder / "v0", folder / "log") as running:
        yield running


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Serves the policy that answers everything with one call of `search`."""
    folder = tmp_path_factory.mktemp("caller")
    with running_engine(make_tool_caller(folder / "v0", Shape(context=2048)), folder / "log") as running:
        yield running
