"""Somebody else steers an engine: who has its key, or finds one without."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.services.policy_engine.conftest import Platform, pid_listening_on
from tests.services.policy_engine.reference import reference_logprobs
from tests.support.waiting import until

from engine_client import EngineClient, SamplingParams
from upcycle.api.registry.v1 import registry_pb2


def key_of(engine_url: str) -> str:
    """Of the start of an engine, as its own user reads it."""
    variables = Path(f"/proc/{pid_listening_on(urlsplit(engine_url).port or 0)}/environ").read_text()
    return dict(one.split("=", 1) for one in variables.split("\0") if one)["EMBEDDED_ENGINE_ADMIN_KEY"]


async def test_weights_of_an_intruder_are_found_though_they_bear_the_name_of_the_version(
    platform: Platform,
) -> None:
    """The engine's label says v4 all the time."""
    await platform.import_base()
    async with platform.supervisor(prove_every_s=2.0):
        await platform.publish(4)
        lease = await platform.serving(4)
        async with EngineClient(lease.base_url, admin_key=key_of(lease.base_url)) as intruder:
            await intruder.reload_weights(platform.policy_dir(9))

        async def withdrawn() -> bool:
            found = await platform.lease()
            return found is None or found.state != registry_pb2.ENGINE_STATE_READY

        await until(withdrawn, "the lease to be withdrawn")
        again = await platform.serving(4)
        async with EngineClient(again.base_url) as client:
            made = await client.generate(platform.model, [5, 6, 7, 8], SamplingParams(max_tokens=8))
        expected = reference_logprobs(platform.policy_dir(4), [5, 6, 7, 8, *made.token_ids])[3:]
        assert made.logprobs == pytest.approx(expected, abs=1e-4)
