"""How an engine can fail its caller; one class per reaction."""

from upcycle.errors import Unavailable


class EngineError(Exception):
    """Base of this package's errors."""


class EngineUnavailable(EngineError, Unavailable):
    """No usable answer: not reachable, too slow, dying, or without proven weights. Try again or elsewhere.

    An engine's supervisor tells it apart from other unavailable services; others treat it as Unavailable.
    """


class GenerationAborted(EngineUnavailable):
    """The engine gave up this request half-way; its tokens are not a completion."""


class MalformedReply(EngineUnavailable):
    """The engine answered something that is not its own wire format."""


class EngineRejected(EngineError):
    """The engine refuses this request and will refuse it again: the caller has to change it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"the engine refused the request with HTTP {self.status}: {self.message}"


class ContextOverflow(EngineRejected):
    """Prompt and requested tokens do not fit the model's context: the episode is over, not broken."""
