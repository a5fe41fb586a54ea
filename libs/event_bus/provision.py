"""Applies the topology: creates what is missing, updates what differs, refuses what cannot be changed.
Idempotent.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from nats.aio.client import Client, ServerVersion
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
    StreamSource,
    SubjectTransform,
)
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from event_bus.connection import plain_client
from event_bus.errors import ProvisionRefused
from event_bus.topology import (
    BYTES_PER_DECISION,
    BYTES_PER_EPISODE,
    DECISIONS,
    DECISIONS_PER_EPISODE,
    EVENTS,
    UPCYCLE,
    ConsumerSpec,
    Keep,
    StreamSpec,
    Topology,
)
from identities.tenants import ONLY_TENANT, OWN_TENANT, VARIABLE
from service_kit.clock import utc_now
from service_kit.groups import BusSettings
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_MAX_WAITING: Final = 512
_CONNECT_TIMEOUT_S: Final = 30.0
_LEADER_POLL_S: Final = 1.0
_NO_LEADER: Final = 10_008
_OLDEST_SERVER: Final = (2, 12)
_TENANT: Final = "upcycle.tenant"
"""In the metadata of a stream whose tenant has a name; a platform without one writes none."""


@dataclass(slots=True)
class Provisioned:
    """What an application of the topology did, by the names of streams and `stream/durable`."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    """They differ and were left as they are."""


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
        max_consumers=spec.max_consumers,
        max_age=spec.max_age_s,
        max_msg_size=spec.max_msg_bytes,
        max_msgs_per_subject=spec.max_per_subject,
        discard_new_per_subject=spec.refuse_when_full and spec.max_per_subject > 0,
        duplicate_window=min(spec.duplicate_window_s, spec.max_age_s or spec.duplicate_window_s),
        num_replicas=replicas,
        allow_direct=True,
        allow_atomic=spec.is_atomic,
        metadata=None if OWN_TENANT == ONLY_TENANT else {_TENANT: OWN_TENANT},
        sources=[_source(spec)] if spec.copies_from else None,
    )


def _source(spec: StreamSpec) -> StreamSource:
    """One source for all types: the server copies in the order of one source."""
    transforms = [SubjectTransform(src=there, dest=here) for there, here in spec.copied.items()]
    return StreamSource(name=spec.copies_from, subject_transforms=transforms)


def consumer_config(spec: ConsumerSpec, topology: Topology, replicas: int = 0) -> ConsumerConfig:
    """The server's view of a durable.

    The server never gives up by itself (max_deliver -1): a message that it gives up stays in a work queue,
    undelivered and unseen. The bus counts failures and moves what is hopeless to the dead letters.
    """
    return ConsumerConfig(
        durable_name=spec.durable,
        name=spec.durable,
        filter_subjects=list(topology.filters_of(spec)),
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
    async with provisioning(where) as jetstream:
        return await apply_topology(jetstream, sized(topology, where.episodes_kept), replicas)


async def apply_topology(
    jetstream: JetStreamContext, topology: Topology = UPCYCLE, replicas: int = 1, *, update: bool = True
) -> Provisioned:
    """Apply `topology`, the queues of models apart; within `provisioning`, which says what it raises.

    update: False makes what is missing and changes nothing that is there.
    """
    done = Provisioned()
    for stream in topology.streams:
        copied = await _copied_so_far(jetstream, stream, topology)
        await _apply_stream(jetstream, stream_config(stream, replicas), done, update, copied)
    for consumer in topology.consumers:
        await _apply_consumer(jetstream, consumer.stream, consumer_config(consumer, topology), done, update)
    return done


@asynccontextmanager
async def provisioning(settings: BusSettings | str) -> AsyncIterator[JetStreamContext]:
    """A connection for the body, closed after it. Raises ProvisionRefused, Unavailable."""
    where = BusSettings(url=settings) if isinstance(settings, str) else settings
    client = await _connect(where)
    try:
        _check_version(where.url, client.connected_server_version)
        await _until_it_answers(client)
        yield client.jetstream(timeout=10)
    except ServiceUnavailableError as error:  # no JetStream, or none yet
        raise Unavailable(f"JetStream at {where.url}: {error}") from error
    except APIError as error:
        raise ProvisionRefused(f"{where.url} refuses the topology: {error}") from error
    except NatsError as error:
        raise Unavailable(f"{where.url} stopped answering while it was provisioned: {error!r}") from error
    finally:
        await client.close()


def sized(topology: Topology, episodes_kept: int) -> Topology:
    """`topology` whose facts and decisions have room for so many episodes; as it is for 0."""
    if not episodes_kept:
        return topology
    decisions = int(episodes_kept * DECISIONS_PER_EPISODE)
    rooms: dict[str, dict[str, Any]] = {
        EVENTS: {"max_bytes": episodes_kept * BYTES_PER_EPISODE},
        DECISIONS: {"max_bytes": decisions * BYTES_PER_DECISION, "max_msgs": decisions},
    }
    return replace(
        topology, streams=tuple(replace(one, **rooms.get(one.name, {})) for one in topology.streams)
    )


async def _connect(where: BusSettings) -> Client:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            return await plain_client(where, "upcycle-provision", reconnect_time_wait=0.2)
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(f"no NATS at {where.url} within {_CONNECT_TIMEOUT_S:g} s: {error!r}") from error


async def _until_it_answers(client: Client) -> None:
    """A cluster that just started answers nothing before it has a leader. Raises what the last try raised."""
    jetstream = client.jetstream(timeout=_LEADER_POLL_S)
    give_up_at = time.monotonic() + _CONNECT_TIMEOUT_S
    while True:
        try:
            await jetstream.account_info()
        except (NatsTimeout, ServiceUnavailableError) as error:
            no_leader = isinstance(error, NatsTimeout) or error.err_code == _NO_LEADER
            if not no_leader or time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(_LEADER_POLL_S / 4)
        else:
            return


def _check_version(url: str, version: ServerVersion) -> None:
    """An older server takes the streams, and then stores a step message by message."""
    if (version.major, version.minor) < _OLDEST_SERVER:
        oldest = ".".join(map(str, _OLDEST_SERVER))
        raise ProvisionRefused(
            f"NATS at {url} is {version.major}.{version.minor}.{version.patch}: decisions need {oldest} or "
            "later, which stores several messages as one; update it first"
        )


async def _copied_so_far(jetstream: JetStreamContext, stream: StreamSpec, topology: Topology) -> int:
    """Last sequence of the streams that copy this one, 0 where there is none."""
    last = 0
    for copying in (one.name for one in topology.streams if one.copies_from == stream.name):
        with suppress(NotFoundError):
            last = max(last, (await jetstream.stream_info(copying)).state.last_seq)
    return last


async def _apply_stream(
    jetstream: JetStreamContext, wanted: StreamConfig, done: Provisioned, update: bool, copied: int
) -> None:
    """copied: a stream that is made anew begins after it, or its first messages would pass for copied."""
    name = str(wanted.name)
    try:
        info = await jetstream.stream_info(name)
    except NotFoundError:
        await jetstream.add_stream(wanted, first_seq=copied + 1 if copied else None)
        done.created.append(name)
        return
    _refuse_of_another(name, info)
    same = {"metadata": info.config.metadata}  # the server notes more in it
    changes = _differences({**wanted.as_dict(), **same}, info.config.as_dict())
    if update:
        await _refuse_loss(jetstream, wanted, info)
    await _update(name, changes, (lambda: jetstream.update_stream(wanted)) if update else None, done)


def _refuse_of_another(name: str, info: StreamInfo) -> None:
    """Raise ProvisionRefused where the stream is another tenant's."""
    owner = (info.config.metadata or {}).get(_TENANT, ONLY_TENANT)
    if owner != OWN_TENANT:
        raise ProvisionRefused(
            f"stream {name} belongs to tenant {owner!r}, and this process provisions for {OWN_TENANT!r}: "
            f"give each tenant an account of NATS of its own (`upcycle bus keys`), or set {VARIABLE}={owner}"
        )


async def _refuse_loss(jetstream: JetStreamContext, wanted: StreamConfig, info: StreamInfo) -> None:
    """Raise ProvisionRefused when a smaller bound would remove messages that the stream holds."""
    name, state, have = str(wanted.name), info.state, info.config
    bounds: dict[str, tuple[float | None, float | None, float]] = {
        "max_bytes": (have.max_bytes, wanted.max_bytes, float(state.bytes)),
        "max_msgs": (have.max_msgs, wanted.max_msgs, float(state.messages)),
    }
    if state.messages and _is_smaller(wanted.max_age, have.max_age):
        oldest = (await jetstream.get_msg(name, state.first_seq)).time or utc_now()
        bounds["max_age"] = have.max_age, wanted.max_age, (utc_now() - oldest).total_seconds()
    if state.messages and _is_smaller(wanted.max_msgs_per_subject, have.max_msgs_per_subject):
        most = max((await _per_subject(jetstream, name)).values(), default=0)
        bounds["max_msgs_per_subject"] = have.max_msgs_per_subject, wanted.max_msgs_per_subject, float(most)
    for bound, (old, new, held) in bounds.items():
        if _is_smaller(new, old) and new is not None and held > new:
            raise ProvisionRefused(
                f"{name} holds {held:.0f}, and {bound} {old} -> {new} would remove what is beyond: "
                "keep the bound, or purge the stream first"
            )


def _is_smaller(new: float | None, old: float | None) -> bool:
    """Whether bound `new` is below `old`; none, zero and below are no bound."""
    return bool(new and new > 0 and (not old or old <= 0 or new < old))


async def _per_subject(jetstream: JetStreamContext, stream: str) -> dict[str, int]:
    return (await jetstream.stream_info(stream, subjects_filter=">")).state.subjects or {}


async def _apply_consumer(
    jetstream: JetStreamContext, stream: str, wanted: ConsumerConfig, done: Provisioned, update: bool
) -> None:
    try:
        existing = (await jetstream.consumer_info(stream, str(wanted.durable_name))).config
    except NotFoundError:
        existing = None
    await apply_durable(jetstream, stream, wanted, existing, done, update=update)


async def apply_durable(
    jetstream: JetStreamContext,
    stream: str,
    wanted: ConsumerConfig,
    existing: ConsumerConfig | None,
    done: Provisioned,
    *,
    update: bool = True,
) -> None:
    """Make one durable what it should be. existing: what the server has, None for nothing."""
    name = f"{stream}/{wanted.durable_name}"
    if existing is None:
        await jetstream.add_consumer(stream, wanted)
        done.created.append(name)
        return
    theirs = existing.as_dict()
    # One filter comes back under its singular name.
    theirs.setdefault("filter_subjects", [theirs["filter_subject"]] if theirs.get("filter_subject") else [])
    changes = _differences(wanted.as_dict(), theirs)
    await _update(name, changes, (lambda: jetstream.add_consumer(stream, wanted)) if update else None, done)


async def _update(
    name: str, changes: Mapping[str, tuple[Any, Any]], apply: Callable[[], Any] | None, done: Provisioned
) -> None:
    if not changes:
        done.unchanged.append(name)
        return
    if apply is None:
        done.outdated.append(name)
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
