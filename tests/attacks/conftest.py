"""The platform that is attacked: `upcycle up` as in somebody's terminal, on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.platform_recipes import EXAMPLE, MODEL, POLICY_DIR
from tests.support import refused

from upcycle.platform import Addresses, find_addresses

UPCYCLE = Path(sys.executable).parent / "upcycle"
CANARIES = {
    name: f"canary-{name}"
    for name in (
        "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "VLLM_API_KEY",
        "MY_DATABASE_URL", "OTEL_EXPORTER_OTLP_HEADERS",
    )
}  # fmt: skip
"""What may stand in the shell in which somebody starts a platform."""
READY_S = 240.0
STOP_S = 60.0
PORT_OFFSET = 2600


@dataclass(frozen=True, slots=True)
class Attacked:
    """data_dir: of the platform. state: what it says of itself. secrets: all that it has."""

    data_dir: Path
    state: dict[str, Any]

    @property
    def secrets(self) -> dict[str, str]:
        """By name."""
        logins: dict[str, str] = json.loads((self.data_dir / "credentials.json").read_text())
        made = {name: value for name, value in logins.items() if not name.endswith(("_user", "_access_key"))}
        keys = {
            name: (self.data_dir / name).read_text().strip()
            for name in ("operator.key", "service.key", "gateway.key")
        }
        return {**CANARIES, **made, **keys}

    @property
    def addresses(self) -> Addresses:
        """Where its commands find it."""
        return find_addresses(self.data_dir, environ={"UPCYCLE_UP_DATA_DIR": str(self.data_dir)})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many single attacks were refused, beside the tests that are one each."""
    refused.report(terminalreporter, "on this machine")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of a worker: what it counted goes to the process that reports."""
    refused.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Of a worker that ended."""
    refused.take_over(node)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a process waits for the whole platform: over a minute on two busy cores."""
    for item in items:
        if "attacked" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(READY_S + 120))


@pytest.fixture(scope="session")
def attacked() -> Iterator[Attacked]:
    """The one of all tests."""
    with running_platform(PORT_OFFSET, CANARIES) as running:
        yield running


@contextmanager
def running_platform(port_offset: int, variables: Mapping[str, str]) -> Iterator[Attacked]:
    """In a folder that everybody may enter, as pytest's own are not, and with an ordinary umask."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    data_dir = place / "up"
    command = (str(UPCYCLE), "up", "--data-dir", str(data_dir), "--model", MODEL)
    with (place / "up.log").open("wb") as log:
        process = subprocess.Popen(
            (*command, "--model-dir", str(POLICY_DIR), "--environments", str(EXAMPLE), "--json",
             "--port-offset", str(port_offset)),
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=place, umask=0o022,
            env={**os.environ, **variables},
        )  # fmt: skip
    try:
        _until_ready(process, place / "up.log")
        yield Attacked(data_dir, json.loads((data_dir / "state.json").read_text()))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
        shutil.rmtree(place)


def _until_ready(process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_at = time.monotonic() + READY_S
    while '"ready"' not in (said := log.read_text()):
        assert process.poll() is None, said[-3000:]
        assert time.monotonic() < give_up_at, said[-3000:]
        time.sleep(0.1)
