"""The seeds' command lines that need no platform, typed as they are printed."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.seeds.table import ALONE, ENDPOINT, SHELL, Row
from tests.support.model_servers import (
    KEY,
    MODEL,
    Asked,
    ModelServerDouble,
    Said,
    Turn,
    openai_shaped,
    serving,
)

UPCYCLE = str(Path(sys.executable).parent / "upcycle")
NUM_TASKS = 50


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ModelServerDouble]:
    """A server with one model, as vLLM has."""
    answer = openai_shaped(lambda results: Turn("I do not know"))

    def only(asked: Asked) -> Said:
        return Said(200, {"data": [{"id": MODEL}]}) if asked.method == "GET" else answer(asked)

    with serving(only) as server:
        yield server


def kept_of(environ: dict[str, str]) -> dict[str, str]:
    """Without what would name a platform or another agent."""
    return {name: value for name, value in environ.items() if not name.startswith(("UPCYCLE_", "OPENAI_"))}


@pytest.mark.parametrize("row", [row for row in SHELL if row.line in ALONE], ids=lambda row: row.line)
def test_a_command_line_without_a_platform(row: Row, endpoint: ModelServerDouble, tmp_path: Path) -> None:
    if "--model" not in row.line:
        (tmp_path / "upcycle.toml").write_text(f'[eval.policy]\nmodel = "{endpoint.url}/v1#{MODEL}"\n')
    line = row.typed().replace(ENDPOINT, f"{endpoint.url}/v1")
    done = subprocess.run(
        [UPCYCLE, *shlex.split(line)[1:]],
        cwd=tmp_path,
        env={**kept_of(dict(os.environ)), "UPCYCLE_AGENT_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "sheet-50: Upcycle's own tasks, not those of the benchmark 'sheetbench-50' of others" in done.stderr
    )
    assert f"{NUM_TASKS}/{NUM_TASKS} graded (100%)" in done.stderr
    assert "anchor: scripted-5" in done.stdout
    assert len(endpoint.turns) % NUM_TASKS == 0
