"""What the bus refuses or cannot do, one class per reaction. While NATS does not answer, the bus raises
`upcycle.errors.Unavailable`.
"""

from collections.abc import Collection

from upcycle.errors import Unavailable, UpcycleError


class BusError(Exception):
    """Base of every error of this package."""


class QueueFull(BusError, Unavailable):
    """The command queue holds as many commands as it may; slow down and ask again."""


class AlreadyDecided(BusError):
    """The stream of decisions holds one about the same thing; read which."""


class EventTooLarge(BusError):
    """Payload and headers together exceed what a stream takes; put the bulk in the object store."""


class UnknownEvent(BusError):
    """A message type, subject or id that the topology does not name; a bug of the caller."""


class NotProvisioned(BusError):
    """A stream or durable does not exist; run `upcycle-provision`."""


class OutdatedDurable(NotProvisioned):
    """A durable does not read all subjects that this program expects: some facts would never come."""

    def __init__(self, what: str, *, have: Collection[str], want: Collection[str]) -> None:
        missing, unknown = sorted(set(want) - set(have)), sorted(set(have) - set(want))
        said = f"{what} reads {sorted(have)}, this program expects {sorted(want)}"
        said += f"; missing: {missing}" * bool(missing) + f"; unknown here: {unknown}" * bool(unknown)
        super().__init__(f"{said}: run the upcycle-provision of this version")


class ProvisionRefused(BusError):
    """The server will not change an existing stream or durable to what the topology says."""


class CursorBeyondStream(BusError):
    """A kept cursor is newer than the newest message: the stream is not the one that the cursor was taken
    from.
    """


class RequestRefused(BusError):
    """Provisioning does not do what a service asked it for; a bug of the service, or more than its rights."""


class NotOurDecision(BusError):
    """Only another service may decide this, and nothing is decided yet."""


class NewerEvent(BusError, Unavailable):
    """A durable brought a type that only a newer version of this service knows; it waits for that version."""


class DeadLetterRefused(BusError, UpcycleError):
    """A dead letter cannot be shown, replayed or accepted: `kind` says why."""


class UnknownDeadLetter(DeadLetterRefused):
    """The stream of dead letters holds none of that number."""

    kind = "dead_letter_unknown"


class DeadLetterHandled(DeadLetterRefused):
    """It was replayed or accepted already."""

    kind = "dead_letter_handled"


class DeadLetterUndeliverable(DeadLetterRefused):
    """The reader that gave it up is gone or cannot be reached, or there is no message in it."""

    kind = "dead_letter_undeliverable"


class MalformedEvent(BusError):
    """The bytes are not the message that their subject promises."""


class PoisonMessage(Exception):
    """A handler can never process this message. The bus stores it as a dead letter with `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
