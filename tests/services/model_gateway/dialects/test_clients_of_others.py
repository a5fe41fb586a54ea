"""Other clients as their makers publish them, each in an environment of its own, through a real gateway.

Installing takes a minute or two where the wheels are not on this machine yet.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.packaging.venvs import clean_environment
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.dialects.conftest import MODEL
from tests.services.model_gateway.dialects.programs import PROGRAMS, whole

pytestmark = [pytest.mark.study, pytest.mark.timeout(900)]

CALLED: dict[str, Any] = {"query": "disk"}


def python_of(client: str, config: pytest.Config) -> Path:
    """Of an environment with this client."""
    assert config.cache is not None
    folder = config.cache.mkdir("clients") / client
    program = folder / "bin" / "python"
    if not (folder / "complete").exists():
        uv = [sys.executable, "-m", "uv"]
        install = [*uv, "pip", "install", "-q", "--python", str(program), *PROGRAMS[client][0]]
        for command in ([*uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)], install):
            subprocess.run(command, check=True, timeout=800, env=clean_environment())
        (folder / "complete").touch()
    return program


async def said_by(client: str, gateway: Gateway, config: pytest.Config) -> dict[str, Any]:
    """What its program prints."""
    python = await asyncio.to_thread(python_of, client, config)
    environment = {**clean_environment(), "GATEWAY": gateway.url, "KEY": KEY, "MODEL": MODEL}
    process = await asyncio.create_subprocess_exec(
        python,
        "-c",
        whole(PROGRAMS[client][1]),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, errors.decode()
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return said


def arguments(said: dict[str, Any], *names: str) -> list[Any]:
    return [json.loads(said[name]) for name in names]


async def test_openai_2(calling: Gateway, pytestconfig: pytest.Config) -> None:
    said = await said_by("openai", calling, pytestconfig)
    names = ("chat", "chat_stream", "responses", "responses_stream")
    assert arguments(said, *names) == [CALLED] * 4


async def test_the_agents_sdk(calling: Gateway, pytestconfig: pytest.Config) -> None:
    said = await said_by("openai-agents", calling, pytestconfig)
    names = ("chat", "chat_stream", "responses", "responses_stream")
    assert arguments(said, *names) == [CALLED] * 4
    assert said["turns"] == "MaxTurnsExceeded"


async def test_litellm(calling: Gateway, pytestconfig: pytest.Config) -> None:
    said = await said_by("litellm", calling, pytestconfig)
    names = ("chat", "chat_stream", "messages", "messages_stream", "responses")
    assert arguments(said, *names) == [CALLED] * 5
    assert said["too_long"] == "ContextWindowExceededError"


async def test_langchain(calling: Gateway, pytestconfig: pytest.Config) -> None:
    said = await said_by("langchain", calling, pytestconfig)
    names = [f"{name}{kind}" for name in ("chat", "responses", "messages") for kind in ("", "_stream")]
    assert arguments(said, *names) == [CALLED] * 6
    assert [said[f"{name}_result"] for name in ("chat", "responses", "messages")] == [1, 1, 1]
