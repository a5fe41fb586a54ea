"""What an intruder in a container tries; run there, with the container's own Python, its key and its network.

Prints one JSON object. `python - HOST:PORT... -- SUBJECT...`: the addresses to knock at, and what to publish.
"""

import asyncio
import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CONNECT_S = 3.0
WRITABLE_BY_ITS_USER = ("/home/upcycle/intruder", "/opt/upcycle/intruder", "/etc/intruder")


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S):
            return True
    except OSError:
        return False


def is_written(path: str) -> str:
    """Empty, or why not."""
    try:
        Path(path).write_text("x")
    except OSError as error:
        return str(error.strerror)
    return ""


def process_status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def connects(**login: str) -> bool:
    """Whether NATS lets it in."""
    import nats

    once = {"allow_reconnect": False, "max_reconnect_attempts": 0, "connect_timeout": 5}
    try:
        client = await nats.connect(os.environ["UPCYCLE_BUS_URL"], **once, **login)
    except Exception:
        return False
    await client.close()
    return True


async def is_answered(client: Any, subject: str) -> bool:
    """By JetStream, and without an error."""
    import nats.errors

    try:
        answer = await client.request(subject, b"{}", timeout=5)
    except nats.errors.Error:
        return False
    return "error" not in json.loads(answer.data)


async def bus(subjects: list[str]) -> dict[str, object]:
    """What NATS does with what only others may publish."""
    import nats

    seed = os.environ["UPCYCLE_BUS_NKEY"]
    client = await nats.connect(os.environ["UPCYCLE_BUS_URL"], nkeys_seed=seed)
    found = {
        "stored": [subject for subject in subjects if await is_answered(client, subject)],
        "asks_as_a_service": await is_answered(client, "upcycle.API.STREAM.INFO.EVENTS"),
        "asks_as_provisioning": await is_answered(client, "$JS.API.STREAM.INFO.EVENTS"),
        "without_a_login": await connects(),
        "with_a_guess": await connects(user="upcycle", password="upcycle"),
    }
    await client.close()
    return found


def main() -> None:
    """Try all of it."""
    end = sys.argv.index("--")
    addresses, subjects = sys.argv[1:end], sys.argv[end + 1 :]
    with ThreadPoolExecutor(64) as pool:
        is_open = dict(zip(addresses, pool.map(answers, addresses), strict=True))
    status = process_status()
    print(
        json.dumps(
            {
                "open": [address for address in addresses if is_open[address]],
                "writes": {path: is_written(path) for path in WRITABLE_BY_ITS_USER},
                "tmp": is_written("/tmp/intruder"),
                "uid": os.getuid(),
                "capabilities": status["CapBnd"],
                "no_new_privileges": status["NoNewPrivs"],
                "keys": sorted(path.name for path in Path("/run/keys").iterdir()),
                "key": Path("/run/keys/bus.nk").read_text(),
                "changes_its_key": is_written("/run/keys/bus.nk") == "",
                "bus": asyncio.run(bus(subjects)),
            }
        )
    )


if __name__ == "__main__":
    main()
