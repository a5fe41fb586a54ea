"""What each service may do on the bus, derived from the topology: what it publishes, and what it reads.

Nothing here talks to a server: `event_bus.accounts` writes the rights into the configuration of one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from event_bus.decision_specs import DecisionSpec
from event_bus.errors import UnknownEvent
from event_bus.topology import ATTEMPTS, DLQ, EVENTS, OWNERS, TASKS, UPCYCLE, ConsumerSpec, Topology
from identities import subjects
from identities.durables import durable

SERVICES: Final = (
    "checkpoint_registry",
    "grpo_trainer",
    "model_gateway",
    "policy_engine",
    "reward_grader",
    "rollout_sampler",
    "scenario_runner",
    "trajectory_store",
)
"""Each has a key and rights of its own."""
PROVISION: Final = "provision"
"""Makes and removes streams and durables, and answers requests of services (`event_bus.service_requests`)."""
OPERATOR: Final = "operator"
"""A person with the commands that look into the bus: dead letters, backups, `upcycle doctor`."""
IDENTITIES: Final = (*SERVICES, PROVISION, OPERATOR)

_AUTHORS: Final[Mapping[str, str]] = {"trainer": "grpo_trainer", "planner": "scenario_runner"}
"""Author of a decision whose type has several -> its service."""
_ONE_AUTHOR: Final[Mapping[str, str]] = {"graded": "reward_grader"}
"""Author of a decision that one of the owners of its type makes; the others publish a copy of it."""
_CHANNELS: Final = ("latest", "head", "candidate")
_CLIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "policy_engine": tuple(f"policy_engine-{channel}" for channel in _CHANNELS)
}
"""Names with which a service's processes connect, where that is not the service's own."""
_CURSORS: Final = ("grpo_trainer", "model_gateway", "policy_engine")
"""They read facts from a place that they keep themselves, without a durable."""
_LISTS_DEAD_LETTERS: Final = ("checkpoint_registry", "scenario_runner", "trajectory_store")
"""They ask what was given up before they remove anything."""
_LOOKS_AT_QUEUES: Final = ("rollout_sampler", "scenario_runner")
JETSTREAM_PREFIX: Final = "$JS.API"
SERVICE_PREFIX: Final = "upcycle.API"
"""Where a service with a key asks JetStream."""
_CLIENT: Final = "replay-{}"
READER: Final = "reader"
COPY: Final = "copy"
"""What a service may ask provisioning for (`event_bus.service_requests`)."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects on which a service may send; the server knows no other right of it."""

    service: str
    publishes: tuple[str, ...]
    """What streams store."""
    asks: tuple[str, ...]
    """What the server, or provisioning, answers once."""
    pulls: tuple[str, ...]
    """Requests for messages, which the server answers often."""
    never: tuple[str, ...] = ()
    """What `pulls` would allow beside it, and must not."""

    def may_publish(self, subject: str) -> bool:
        """Whether a stream takes `subject` from this service."""
        return any(_covers(allowed, subject) for allowed in self.publishes)


def rights_of(service: str, topology: Topology = UPCYCLE) -> Rights:
    """Raises UnknownEvent for a name that is no service."""
    if service not in SERVICES:
        raise UnknownEvent(f"{service!r} is no service of the platform: {', '.join(SERVICES)}")
    durables = durables_of(service, topology)
    readers = [*(spec.durable for spec in durables), *map(_CLIENT.format, clients_of(service))]
    publishes = {*_facts(service, topology), *_decisions(service, topology), *_commands(service, topology)}
    publishes |= {*_dead_letters(service, durables, readers, topology), *_notes(durables, readers)}
    return Rights(
        service,
        publishes=tuple(sorted(publishes)),
        asks=tuple(sorted({*_questions(service, topology), *_acknowledgements(durables)})),
        pulls=tuple(sorted({*_pulls(service, durables)})),
        never=tuple(sorted(_pulls_of_others(service, topology))),
    )


def service_of(client_name: str) -> str | None:
    """The service whose processes connect with this name; None for a name of no service."""
    return next((service for service in SERVICES if client_name in clients_of(service)), None)


def clients_of(service: str) -> tuple[str, ...]:
    """Names with which processes of a service connect."""
    return _CLIENTS.get(service, (service,))


def durables_of(service: str, topology: Topology = UPCYCLE) -> tuple[ConsumerSpec, ...]:
    """The durables of a service, and the queues of which each model gets one."""
    name = durable(service.replace("_", "-"))
    specs = (*topology.consumers, *topology.queues)
    return tuple(spec for spec in specs if spec.durable == name or spec.durable.startswith(f"{name}_"))


def _facts(service: str, topology: Topology) -> Iterator[str]:
    """Facts that decide nothing. What decides is published as a decision, and copied by the server."""
    for event, owners in OWNERS.items():
        if service in owners and event not in topology.decisions:
            yield subjects.fact(topology.verb_of(event), None, tenant=None)


def _decisions(service: str, topology: Topology) -> Iterator[str]:
    for event, spec in topology.decisions.items():
        for author in spec.authors:
            if service in _deciders(event, spec, author):
                yield subjects.decision(spec.kind, None, None, author, None)


def _deciders(event: type[Message], spec: DecisionSpec, author: str) -> tuple[str, ...]:
    if author in _ONE_AUTHOR:
        return (_ONE_AUTHOR[author],)
    return (_AUTHORS[author],) if author in _AUTHORS else OWNERS[event]


def _commands(service: str, topology: Topology) -> Iterator[str]:
    pools = {pool for spec in topology.queues for pool in spec.pools}
    for command in topology.commands:
        if service in OWNERS[command]:
            yield from (
                subjects.command(topology.kind_of(command), pool, None, tenant=None) for pool in pools
            )


def _dead_letters(
    service: str, durables: tuple[ConsumerSpec, ...], readers: list[str], topology: Topology
) -> Iterator[str]:
    """Of what it reads, and of what it lost."""
    for spec in durables:
        for subject, _ in topology.bound_by(spec):
            yield subjects.dead_letter(subject)
    if service in _CURSORS:
        yield subjects.dead_letter(subjects.all_facts())
    for reader in readers:
        yield subjects.gap(reader, None, tenant=None)


def _notes(durables: tuple[ConsumerSpec, ...], readers: list[str]) -> Iterator[str]:
    """How often a message was tried, and the places of readers. A queue has a durable for each model, whose
    name is one token."""
    any_of = {subjects.ANY if spec.stream == TASKS else spec.durable: spec.stream for spec in durables}
    for reader, stream in any_of.items():
        yield subjects.all_attempts_of(reader, stream)
    yield from map(subjects.all_places_of, readers)


def _questions(service: str, topology: Topology) -> Iterator[str]:
    yield f"{JETSTREAM_PREFIX}.STREAM.INFO.*"
    yield f"{JETSTREAM_PREFIX}.CONSUMER.INFO.*.*"
    yield f"{JETSTREAM_PREFIX}.DIRECT.GET.{ATTEMPTS}.>"
    for stream in topology.streams:
        if stream.name != TASKS or service in _LOOKS_AT_QUEUES:
            yield f"{JETSTREAM_PREFIX}.STREAM.MSG.GET.{stream.name}"
    if any(service in owners for event, owners in OWNERS.items() if event in topology.decisions):
        yield subjects.request(service, COPY)
    if service in {*_CURSORS, *_LISTS_DEAD_LETTERS}:
        yield subjects.request(service, READER)


def pulls_of_reader(stream: str, reader: str = subjects.ANY) -> str:
    """Where messages are asked for."""
    return f"{JETSTREAM_PREFIX}.CONSUMER.MSG.NEXT.{stream}.{reader}"


def _acknowledgements(durables: tuple[ConsumerSpec, ...]) -> Iterator[str]:
    for spec in durables:
        yield f"$JS.ACK.{spec.stream}.{'*' if spec.stream == TASKS else spec.durable}.>"


def _pulls(service: str, durables: tuple[ConsumerSpec, ...]) -> Iterator[str]:
    for spec in durables:
        yield pulls_of_reader(spec.stream, subjects.ANY if spec.stream == TASKS else spec.durable)
    if service in _CURSORS:
        yield pulls_of_reader(EVENTS)
    if service in _LISTS_DEAD_LETTERS:
        yield pulls_of_reader(DLQ)


def _pulls_of_others(service: str, topology: Topology) -> Iterator[str]:
    """Readers that provisioning opens have names that only the asking process knows; durables are known."""
    if service in _CURSORS:
        yield from (
            pulls_of_reader(EVENTS, spec.durable) for spec in topology.consumers if spec.stream == EVENTS
        )


def _covers(pattern: str, subject: str) -> bool:
    tokens, parts = pattern.split("."), subject.split(".")
    if tokens[-1] == ">":
        return len(parts) >= len(tokens) and all(map(_matches, tokens[:-1], parts))
    return len(parts) == len(tokens) and all(map(_matches, tokens, parts))


def _matches(token: str, part: str) -> bool:
    return token in ("*", part)
