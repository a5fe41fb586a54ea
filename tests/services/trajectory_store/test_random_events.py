"""Random facts on the bus: those that are none are put aside, and the store goes on with those that are."""

import random
from pathlib import Path

import nats
from google.protobuf import json_format
from google.protobuf.message import Message
from tests.conftest import NatsFactory
from tests.services.trajectory_store import events
from tests.services.trajectory_store.running_store import running
from tests.support.fuzzing import CASES, random_message, randomness
from tests.support.waiting import until

from event_bus.codec import headers_for
from event_bus.provision import provision
from event_bus.topology import UPCYCLE
from service_kit.groups import S3Settings


def payload_of(dice: random.Random, kind: type[Message]) -> bytes:
    """A fact that means nothing, one that is cut, or noise."""
    try:
        body = json_format.MessageToJson(random_message(dice, kind.DESCRIPTOR)).encode()
    except (ValueError, json_format.SerializeToJsonError):  # a time that JSON cannot say
        body = b"{}"
    choice = dice.random()
    if choice < 0.2:
        return dice.randbytes(dice.choice((0, 3, 500)))
    return body[: dice.randint(0, len(body))] if choice < 0.4 else body


async def test_the_store_goes_on_after_random_facts(
    nats_server: NatsFactory, s3_settings: S3Settings, tmp_path: Path
) -> None:
    server = nats_server()
    await provision(server.url)
    async with running(server.url, s3_settings, tmp_path) as store:
        client = await nats.connect(server.url)
        stream = client.jetstream()
        for kind in UPCYCLE.events:
            dice = randomness(kind.DESCRIPTOR.full_name)
            for number in range(CASES):
                headers = headers_for(kind, f"random/{kind.DESCRIPTOR.name}/{number}")
                if dice.random() < 0.1:
                    headers.pop("Upcycle-Schema")
                subject = UPCYCLE.fact_subject(kind, "incident")
                await stream.publish(subject, payload_of(dice, kind), headers=headers)
        await store.publish(events.requested(0), events.recorded(0), events.graded(0))

        async def is_graded() -> bool:
            return (await store.ledger()).by_state.get("graded") == 1

        await until(is_graded, "the facts after them to be in the ledger")
        await client.close()
