"""A service in a process of its own, for tests that kill it: `python -m tests.libs.event_bus.worker URL
MODE`.

Prints one line per thing that happens. Modes: `sleep` holds each message; `quick` answers at once; `die`
ends the process over each message; `close` makes the server cut the connection; `idle` subscribes and
waits.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from tests.libs.event_bus.support import FAST, fact_spec, subscribe, topology

from event_bus import Delivery, EventBus
from service_kit.groups import BusSettings

SPEC = fact_spec("worker", ack_wait_s=5.0)


def say(*words: object) -> None:
    print(*words, flush=True)


def handler_for(mode: str) -> Any:
    async def handle(delivery: Delivery[Any]) -> None:
        say("start", delivery.message.detail, delivery.num_delivered)
        if mode == "die":
            os._exit(1)
        await asyncio.sleep({"sleep": 60, "slow": 1.0}.get(mode, 0))
        say("done", delivery.message.detail, delivery.num_delivered)

    return handle


async def serve(url: str, mode: str) -> None:
    bus = EventBus(BusSettings(url=url), client_name="worker", topology=topology(SPEC), timings=FAST)
    subscribe(bus, SPEC, handler_for(mode), slots=2)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await bus.start()
    say("up")
    if mode == "close":
        # Payload within the client's limit, payload and headers beyond the server's: a fatal -ERR.
        client = bus._connection.broker.connection
        while True:  # the answer may be lost with the connection; then it is only a reconnect
            await client.publish("x", b"x" * (1024 * 1024 - 10), headers={"a": "b" * 100})
            await asyncio.sleep(0.5)
    await stop.wait()
    await bus.stop()
    say("down")


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
