"""FastStream filters by the type of an event."""

from faststream.message import StreamMessage
from google.protobuf.message import Message
from nats.aio.msg import Msg

from event_bus.topology import UPCYCLE, Topology
from identities import subjects


class Carries:
    """A filter: messages whose subject promises one type. `@sub(filter=Carries(RunFinished))`."""

    def __init__(self, message_type: type[Message], topology: Topology = UPCYCLE) -> None:
        self.message_type = message_type
        self._kinds = {topology.events.get(message_type), topology.commands.get(message_type)} - {None}

    async def __call__(self, message: StreamMessage[Msg]) -> bool:
        return subjects.parse(message.raw_message.subject).kind in self._kinds
