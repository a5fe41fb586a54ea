"""Every way the registry refuses; one class per reaction of the caller."""


class RegistryError(Exception):
    """Base of the registry's own errors."""


class InvalidRequest(RegistryError):
    """The request can never succeed as it is; the message names field, value and limit."""


class UnknownModel(RegistryError):
    """No model of that slug."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"model {model!r} is not in the registry; `upcycle models list` shows what is, "
            "ImportModel or ForkModel adds one"
        )


class UnknownCheckpoint(RegistryError):
    """No such checkpoint of that model."""


class ModelExists(RegistryError):
    """The slug is taken by other weights."""


class CheckpointConflict(RegistryError):
    """A version was announced twice with different weights; versions are never reused."""


class HeadMoved(RegistryError):
    """Compare-and-set lost: head is not at the revision that the caller saw."""

    def __init__(self, model: str, expected: int, actual: int) -> None:
        super().__init__(
            f"head of {model!r} is at revision {actual}, not {expected}; read the model again and decide anew"
        )
        self.model, self.expected, self.actual = model, expected, actual


class StoreTrouble(RegistryError):
    """The object store does not answer, or holds what it should not; nothing is decided meanwhile."""


class PeerUnavailable(RegistryError):
    """Another service did not answer in time; nothing was changed, try again."""


class PeerRefused(RegistryError):
    """Another service refused our request for good; the message carries its reason."""
