"""Schemathesis reads the gateway's OpenAPI document and asks what it allows and what it does not."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from tests.services.model_gateway.conftest import KEY, Gateway
from tests.support.fuzzing import CASES, SEED

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "ignored_auth",
    "unsupported_method",
    "allow_header_conformance",
)
"""Without those that need a schema to hold every rule of a body, such as which models there are."""
PROGRAM: Final = Path(sys.executable).parent / "schemathesis"


async def test_what_the_document_says_is_what_the_gateway_does(gateway: Gateway, tmp_path: Path) -> None:
    command = [f"{PROGRAM}", "run", f"{gateway.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}"]
    command += ["--checks", ",".join(CHECKS), "--max-examples", f"{CASES}", "--seed", f"{SEED}"]
    command += ["--phases", "examples,coverage,fuzzing", "--no-color", "--continue-on-failure"]
    status, said = await ended(command, tmp_path)
    if status < 0:  # a signal ended the program itself, seen once with SIGSEGV: no word about the gateway
        status, said = await ended(command, tmp_path)
    assert status == 0, said[-12_000:]
    assert "Tested: " in said, said


async def ended(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=os.environ | {"COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, said.decode()
