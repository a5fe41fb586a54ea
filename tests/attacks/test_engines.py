"""The engines of the running platform, steered by one who is not their supervisor."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.attacks.conftest import Attacked
from tests.platform_recipes import MODEL
from tests.support import refused
from tests.support.keyless_calls import STEERING, WRONG_HEADERS

from upcycle.api.registry.v1.service_pb2 import ListEnginesRequest
from upcycle.platform import Platform


@pytest.fixture(scope="module")
def engines(attacked: Attacked) -> list[str]:
    """Addresses of the engines that are up."""

    async def ask() -> list[str]:
        async with Platform(attacked.addresses) as platform:
            answer = await platform.registry.ListEngines(ListEnginesRequest(model=MODEL))
        return [engine.base_url for engine in answer.engines]

    return asyncio.run(ask())


async def posted(url: str, body: object, headers: dict[str, str]) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as reply:
        return reply.status, await reply.text()


async def test_without_its_key_an_engine_samples_and_takes_no_orders(engines: list[str]) -> None:
    assert engines
    for engine in engines:
        for path, body in STEERING.items():
            for given in WRONG_HEADERS:
                headers = {} if given is None else {"Authorization": given}
                status, said = await posted(engine + path, body, headers)
                assert (status, "EMBEDDED_ENGINE_ADMIN_KEY" in said) == (401, True), (path, given)
                refused.note("orders to engines", 1)
        sampling = {"model": MODEL, "prompt": "worker", "max_tokens": 2}
        assert (await posted(f"{engine}/v1/completions", sampling, {}))[0] == 200
        async with aiohttp.ClientSession() as session, session.get(f"{engine}/is_paused") as reply:
            assert await reply.json() == {"is_paused": False}


def test_the_keys_of_engines_stand_in_no_command_line(attacked: Attacked) -> None:
    name = b"EMBEDDED_ENGINE_ADMIN_KEY="
    variables = [one for text in read_of_all("environ") for one in text.split(b"\0")]
    keys = {one.removeprefix(name) for one in variables if one.startswith(name)}
    assert keys
    lines = list(read_of_all("cmdline"))
    assert any(b"embedded_engine" in line for line in lines)
    assert not [line for line in lines for key in keys if key in line]


def read_of_all(file: str) -> Iterator[bytes]:
    """Of each process that this user may look into."""
    for process in Path("/proc").glob(f"[0-9]*/{file}"):
        try:
            yield process.read_bytes()
        except OSError:  # it ended meanwhile
            continue
