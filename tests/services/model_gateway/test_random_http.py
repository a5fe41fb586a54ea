"""Random bytes at every route of the gateway and of operations: no 5xx, ids on answers, no task is left."""

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.support.fuzzing import CASES, randomness
from tests.support.random_http import answer_of, check_envelope, request_of
from tests.support.waiting import until

OPERATIONS: Final = ("/livez", "/readyz", "/metrics")


@pytest.mark.parametrize("place", ["public", "operations"])
async def test_no_random_bytes_are_answered_with_a_5xx(gateway: Gateway, place: str) -> None:
    port, paths = gateway.service.http_port, OPERATIONS
    if place == "public":
        async with aiohttp.ClientSession(gateway.url) as http, http.get("/openapi.json") as described:
            port, paths = gateway.port, tuple((await described.json())["paths"])
    await send(port, paths, "before")  # a gateway begins some of its own tasks after it listens
    before = len(asyncio.all_tasks())
    await send(port, paths, "after")
    await until(lambda: len(asyncio.all_tasks()) <= before + 2, "the end of the tasks of the requests")


async def send(port: int, paths: Sequence[str], what: str) -> None:
    """Requests at each path, others for each `what`."""
    for path in paths:
        dice = randomness(f"{path} {what}")
        for _ in range(3 * CASES):
            raw = request_of(dice, path, f"authorization: Bearer {KEY}")
            check_envelope(raw, await answer_of(port, raw))
