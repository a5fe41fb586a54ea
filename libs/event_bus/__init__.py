"""The bus: facts and commands as protobuf events on NATS JetStream. See README.md for what it guarantees."""

from event_bus.bus import EventBus
from event_bus.codec import Encoded
from event_bus.connection import EXIT_CONNECTION_CLOSED
from event_bus.decisions import Decision, decide_each
from event_bus.delivery import BusTimings, Delivery, PubAck
from event_bus.errors import (
    BusError,
    CursorBeyondStream,
    EventTooLarge,
    MalformedEvent,
    NotProvisioned,
    OutdatedDurable,
    PoisonMessage,
    ProvisionRefused,
    QueueFull,
    UnknownEvent,
)
from event_bus.faststream_ext.filters import Carries
from event_bus.faststream_ext.held import Needs
from event_bus.faststream_ext.subscriber import QueueSubscriber
from event_bus.middlewares.decoding import CurrentDelivery
from event_bus.publisher import Stored
from event_bus.router import EventHandlers, EventRouter
from event_bus.topology import EVENT_SUBJECTS, UPCYCLE, ConsumerSpec, StreamSpec, Topology
from service_kit.groups import BusSettings

__all__ = [
    "EVENT_SUBJECTS",
    "EXIT_CONNECTION_CLOSED",
    "UPCYCLE",
    "BusError",
    "BusSettings",
    "BusTimings",
    "Carries",
    "ConsumerSpec",
    "CurrentDelivery",
    "CursorBeyondStream",
    "Decision",
    "Delivery",
    "Encoded",
    "EventBus",
    "EventHandlers",
    "EventRouter",
    "EventTooLarge",
    "MalformedEvent",
    "Needs",
    "NotProvisioned",
    "OutdatedDurable",
    "PoisonMessage",
    "ProvisionRefused",
    "PubAck",
    "QueueFull",
    "QueueSubscriber",
    "Stored",
    "StreamSpec",
    "Topology",
    "UnknownEvent",
    "decide_each",
]
