"""Waiting until a durable has handled everything, so that a test can say what did not happen."""

import asyncio

import nats

from event_bus.topology import ConsumerSpec


async def until_handled(url: str, spec: ConsumerSpec, *, at_least: int, timeout_s: float = 60.0) -> None:
    """Returns when the durable has acknowledged `at_least` messages and has no other one to work on."""
    connection = await nats.connect(url)
    try:
        stream = connection.jetstream()
        async with asyncio.timeout(timeout_s):
            while True:
                now = await stream.consumer_info(spec.stream, spec.durable)
                is_idle = now.num_pending == 0 and now.num_ack_pending == 0
                if is_idle and now.ack_floor is not None and now.ack_floor.consumer_seq >= at_least:
                    return
                await asyncio.sleep(0.02)
    finally:
        await connection.close()
