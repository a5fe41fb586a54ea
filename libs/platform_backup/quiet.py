"""Whether a platform is stopped: nothing reads its bus, nothing is connected to its databases."""

from typing import Any

from nats.aio.client import Client

from event_bus.topology import STREAMS
from platform_backup import streams, tables
from platform_backup.errors import BackupRefused
from platform_backup.places import Places

_HINT = "stop every service and leave NATS, the object store and the databases up"


async def refuse_unless_stopped(client: Client, places: Places) -> None:
    """Raises BackupRefused, which names who is at work."""
    for spec in STREAMS:
        if await streams.info_of(client, spec.name) is None:
            continue
        for durable in await streams.durables_of(client, spec.name):
            if durable.get("num_waiting") or durable.get("push_bound"):
                raise BackupRefused(f"the platform runs: {durable['name']} reads {spec.name}", _HINT)
    for service, url in places.databases.items():
        if others := await tables.sessions_of(service, url):
            raise BackupRefused(f"the platform runs: {others} sessions use the database of {service}", _HINT)


async def traces(client: Client) -> dict[str, Any]:
    """What differs when something was published or read."""
    found: dict[str, Any] = {}
    for spec in STREAMS:
        if (info := await streams.info_of(client, spec.name)) is not None:
            readers = await streams.durables_of(client, spec.name)
            places = {one["name"]: (one["delivered"], one["ack_floor"]) for one in readers}
            found[spec.name] = info.state["last_seq"], places
    return found
