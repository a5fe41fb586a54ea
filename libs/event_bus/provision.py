"""Applies the topology: creates what is missing, updates what differs, refuses what cannot be changed.
Idempotent.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from event_bus.connection import plain_client
from event_bus.errors import ProvisionRefused
from event_bus.topology import UPCYCLE, ConsumerSpec, Keep, StreamSpec, Topology
from service_kit.groups import BusSettings
from service_kit.settings import EXIT_SETTINGS, SettingsError, load_settings
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_MAX_WAITING: Final = 512
_CONNECT_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class Provisioned:
    """What an application of the topology did, by the names of streams and `stream/durable`."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)


def stream_config(spec: StreamSpec, replicas: int = 1) -> StreamConfig:
    """The server's view of a stream."""
    return StreamConfig(
        name=spec.name,
        description=spec.description,
        subjects=list(spec.subjects),
        retention=RetentionPolicy.WORK_QUEUE if spec.keep is Keep.UNTIL_ACKED else RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW if spec.refuse_when_full else DiscardPolicy.OLD,
        max_bytes=spec.max_bytes,
        max_msgs=spec.max_msgs,
        max_age=spec.max_age_s,
        max_msg_size=spec.max_msg_bytes,
        max_msgs_per_subject=spec.max_per_subject,
        duplicate_window=min(spec.duplicate_window_s, spec.max_age_s or spec.duplicate_window_s),
        num_replicas=replicas,
        allow_direct=True,
    )


def consumer_config(spec: ConsumerSpec, topology: Topology, replicas: int = 0) -> ConsumerConfig:
    """The server's view of a durable.

    The server never gives up by itself (max_deliver -1): a message that it gives up stays in a work queue,
    undelivered and unseen. The bus counts failures and moves what is hopeless to the dead letters.
    """
    return ConsumerConfig(
        durable_name=spec.durable,
        name=spec.durable,
        filter_subjects=[subject for subject, _ in topology.bound_by(spec)],
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=spec.ack_wait_s,
        max_deliver=-1,
        max_ack_pending=spec.max_ack_pending,
        max_waiting=_MAX_WAITING,
        num_replicas=replicas,
    )


async def provision(
    settings: BusSettings | str, *, topology: Topology = UPCYCLE, replicas: int = 1
) -> Provisioned:
    """Apply `topology` to the server at `settings` (or a plain URL). Raises ProvisionRefused,
    Unavailable.
    """
    where = BusSettings(url=settings) if isinstance(settings, str) else settings
    client = await _connect(where)
    done = Provisioned()
    try:
        jetstream = client.jetstream(timeout=10)
        for stream in topology.streams:
            await _apply_stream(jetstream, stream_config(stream, replicas), done)
        for consumer in topology.consumers:
            await _apply_consumer(jetstream, consumer.stream, consumer_config(consumer, topology), done)
    except APIError as error:
        raise ProvisionRefused(f"{where.url} refuses the topology: {error}") from error
    except NatsError as error:
        raise Unavailable(f"{where.url} stopped answering while it was provisioned: {error!r}") from error
    finally:
        await client.close()
    return done


async def _connect(where: BusSettings) -> Client:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            return await plain_client(where, "upcycle-provision", reconnect_time_wait=0.2)
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(f"no NATS at {where.url} within {_CONNECT_TIMEOUT_S:g} s: {error!r}") from error


async def _apply_stream(jetstream: JetStreamContext, wanted: StreamConfig, done: Provisioned) -> None:
    name = str(wanted.name)
    try:
        existing = (await jetstream.stream_info(name)).config
    except NotFoundError:
        await jetstream.add_stream(wanted)
        done.created.append(name)
        return
    changes = _differences(wanted.as_dict(), existing.as_dict())
    await _update(name, changes, lambda: jetstream.update_stream(wanted), done)


async def _apply_consumer(
    jetstream: JetStreamContext, stream: str, wanted: ConsumerConfig, done: Provisioned
) -> None:
    name = f"{stream}/{wanted.durable_name}"
    try:
        existing = (await jetstream.consumer_info(stream, str(wanted.durable_name))).config
    except NotFoundError:
        await jetstream.add_consumer(stream, wanted)
        done.created.append(name)
        return
    theirs = existing.as_dict() if existing is not None else {}
    # One filter comes back under its singular name.
    theirs.setdefault("filter_subjects", [theirs["filter_subject"]] if theirs.get("filter_subject") else [])
    changes = _differences(wanted.as_dict(), theirs)
    await _update(name, changes, lambda: jetstream.add_consumer(stream, wanted), done)


async def _update(
    name: str, changes: Mapping[str, tuple[Any, Any]], apply: Callable[[], Any], done: Provisioned
) -> None:
    if not changes:
        done.unchanged.append(name)
        return
    try:
        await apply()
    except APIError as error:
        listed = ", ".join(f"{key}: {old!r} -> {new!r}" for key, (old, new) in sorted(changes.items()))
        raise ProvisionRefused(
            f"{name} exists and the server will not change it ({error.description}): {listed}; "
            "give it a new name, or delete it when what it holds may go"
        ) from error
    done.updated.append(name)


def _differences(wanted: Mapping[str, Any], existing: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What we ask for and the server does not have. Zero, empty and absent are the same to it."""
    return {
        key: (_plain(existing.get(key)), _plain(value))
        for key, value in wanted.items()
        if (_plain(value) or None) != (_plain(existing.get(key)) or None)
    }


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def main() -> None:
    """`upcycle-provision`: apply the topology to the server of UPCYCLE_BUS_*, print what was done as one
    JSON line.
    """
    arguments = sys.argv[1:]
    if arguments and arguments != ["--help"] and not (arguments[0] == "--replicas" and len(arguments) == 2):
        sys.exit(f"upcycle-provision: unknown arguments {arguments}; it takes --replicas N or --help")
    if arguments == ["--help"]:
        sys.stdout.write(_HELP)
        return
    replicas = int(arguments[1]) if arguments else 1
    try:
        settings = load_settings(BusSettings, program="upcycle-provision")
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_SETTINGS)
    try:
        done = asyncio.run(provision(settings, replicas=replicas))
    except (ProvisionRefused, Unavailable) as error:
        sys.exit(f"upcycle-provision: {error}")
    report = {"created": done.created, "updated": done.updated, "unchanged": done.unchanged}
    sys.stdout.write(json.dumps(report) + "\n")


_HELP: Final = """upcycle-provision: create or update the streams and durables that Upcycle runs on.

usage: upcycle-provision [--replicas N]

  --replicas N           copies of each stream in a NATS cluster (default 1)

settings (environment):
  UPCYCLE_BUS_URL        NATS address (default nats://127.0.0.1:4222)
  UPCYCLE_BUS_USER       user name, when the server asks for one
  UPCYCLE_BUS_PASSWORD   password of the user

Safe to run again at any time. Prints {"created": [...], "updated": [...], "unchanged": [...]}.
Exit status: 0 applied, 1 refused or no NATS, 2 wrong settings.
"""
