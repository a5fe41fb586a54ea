"""The queues of models: a durable per model of everything in `Topology.queues`.

One is made when its model came, and removed when its model went and nothing is left in it. What a queue still
holds is never dropped by itself: a person names the model (`upcycle-provision --remove-model`).
"""

import asyncio
import difflib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import ConsumerInfo
from nats.js.errors import NotFoundError

from event_bus.errors import ProvisionRefused
from event_bus.provision import Provisioned, apply_durable, consumer_config, provisioning
from event_bus.topology import UPCYCLE, ConsumerSpec, Topology
from identities import durables
from service_kit.groups import BusSettings

_LOG = logging.getLogger(__name__)
_AT_ONCE: Final = 32
"""Requests that are out at once: each durable is written to disk before the server answers."""

ListModels = Callable[[], Awaitable[Collection[str]]]


@dataclass(slots=True)
class QueuesApplied:
    """What became of the queues."""

    models: frozenset[str] = frozenset()
    """The models that have their queues now."""
    done: Provisioned = field(default_factory=Provisioned)
    orphaned: dict[str, int] = field(default_factory=dict)
    """Commands that wait for models which are gone, by model; their queues stay."""


async def apply_queues(
    jetstream: JetStreamContext, list_models: ListModels, topology: Topology = UPCYCLE
) -> QueuesApplied:
    """Make the queues of all models, and remove those of models that are gone unless they hold commands.

    list_models: asked after the server's durables were read. A durable that was there then was made for a
    model that is in the list, so two processes that do this at once remove nothing of each other. Raises
    what list_models raises; within `provisioning`, which says what else.
    """
    existing = {spec: await _durables(jetstream, spec) for spec in topology.queues}
    result = QueuesApplied(frozenset(await list_models()))
    for spec, found in existing.items():
        if (
            spec.durable in found
        ):  # of an earlier version: one for all models, which no other may stand beside
            await _delete(jetstream, spec.stream, spec.durable, result.done)
    changes = _changes(jetstream, topology, existing, result)
    errors: list[BaseException] = []
    while some := list(islice(changes, _AT_ONCE)):
        done = await asyncio.gather(*some, return_exceptions=True)
        errors += [one for one in done if one is not None]
    if errors:  # after the others: a queue that the server refuses costs no other model its own
        raise errors[0]
    return result


def _changes(
    jetstream: JetStreamContext,
    topology: Topology,
    existing: Mapping[ConsumerSpec, Mapping[str, ConsumerInfo]],
    result: QueuesApplied,
) -> Iterator[Awaitable[None]]:
    for spec, found in existing.items():
        for model in sorted(result.models):
            wanted = consumer_config(spec.of_model(model), topology)
            info = found.get(str(wanted.durable_name))
            theirs = None if info is None else info.config
            yield apply_durable(jetstream, spec.stream, wanted, theirs, result.done)
        for name, info in found.items():
            gone = durables.model_of(spec.durable, name)
            if gone is not None and gone not in result.models:
                if waiting := (info.num_pending or 0) + (info.num_ack_pending or 0):
                    result.orphaned[gone] = result.orphaned.get(gone, 0) + waiting
                else:
                    yield _delete(jetstream, spec.stream, name, result.done)


async def provision_queues(
    settings: BusSettings | str, models: Collection[str], topology: Topology = UPCYCLE
) -> QueuesApplied:
    """`apply_queues` once, for exactly these models. Raises ProvisionRefused, Unavailable."""

    async def named() -> Collection[str]:
        return models

    async with provisioning(settings) as jetstream:
        return await apply_queues(jetstream, named, topology)


async def remove_model(
    jetstream: JetStreamContext, model: str, models: Collection[str], topology: Topology = UPCYCLE
) -> int:
    """Delete the queues of a model that is gone, with their commands; returns how many those were.

    models: those that the registry lists. Raises ProvisionRefused for one of them, and for a name that no
    queue has; within `provisioning`, which says what else.
    """
    if model in models:
        raise ProvisionRefused(
            f"model {model!r} is in the registry, and its queues would be made again; nothing was removed: "
            "stop its runs (upcycle runs stop), and samplers drop their commands"
        )
    existing = {spec: await _durables(jetstream, spec) for spec in topology.queues}
    if not any(spec.of_model(model).durable in found for spec, found in existing.items()):
        raise ProvisionRefused(_unknown(model, existing))
    num_commands = 0
    for spec, found in existing.items():
        queue = spec.of_model(model)
        for subject in topology.filters_of(queue):
            state = (await jetstream.stream_info(spec.stream, subjects_filter=subject)).state
            num_commands += sum((state.subjects or {}).values())
            await jetstream.purge_stream(spec.stream, subject=subject)
        if queue.durable in found:
            await _delete(jetstream, spec.stream, queue.durable, Provisioned())
    return num_commands


def _unknown(model: str, existing: Mapping[ConsumerSpec, Collection[str]]) -> str:
    pairs = ((spec, name) for spec, found in existing.items() for name in found)
    known = {one for spec, name in pairs if (one := durables.model_of(spec.durable, name)) is not None}
    near = difflib.get_close_matches(model, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"queues exist of {len(known)} models"
    return f"no queue is of model {model!r}; nothing was removed: {hint}"


async def _durables(jetstream: JetStreamContext, spec: ConsumerSpec) -> dict[str, ConsumerInfo]:
    """The durables of a queue's stream that are the queue's: its own name, or that of one model."""
    found: dict[str, ConsumerInfo] = {}
    offset = 0
    while page := await jetstream.consumers_info(spec.stream, offset=offset):
        offset += len(page)
        found |= {str(info.name): info for info in page if str(info.name).startswith(spec.durable)}
    return found


async def _delete(jetstream: JetStreamContext, stream: str, durable: str, done: Provisioned) -> None:
    """The stream keeps the commands that the durable has not acknowledged."""
    try:
        await jetstream.delete_consumer(stream, durable)
    except NotFoundError:  # another process was faster
        return
    _LOG.info("durable_removed", extra={"stream": stream, "durable": durable})
    done.removed.append(f"{stream}/{durable}")
