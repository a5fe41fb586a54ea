"""Every way the registry refuses; one class per reaction of the caller."""

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches


class RegistryError(Exception):
    """Base of the registry's own errors."""


class UnknownModel(RegistryError):
    """No model of that slug."""

    def __init__(self, model: str, known: Sequence[str] = ()) -> None:
        """known: slugs among which one may be meant."""
        near = get_close_matches(model, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(
            f"model {model!r} is not in the registry; {hint}`upcycle models list` shows what is, "
            "`upcycle models import` or `upcycle models fork` adds one"
        )


class UnknownCheckpoint(RegistryError):
    """No such checkpoint of that model."""


class ModelExists(RegistryError):
    """The slug is taken by other weights."""


class UnknownVersion(RegistryError):
    """No such version was published, or its fact has not arrived yet."""

    def __init__(self, model: str, version: int) -> None:
        super().__init__(f"no version {version} of model {model!r} is recorded as published")


class VersionRemoved(RegistryError):
    """The version was published, and retention has removed it."""

    def __init__(self, model: str, version: int, at: datetime) -> None:
        super().__init__(
            f"version {version} of model {model!r} was removed at {at:%Y-%m-%d %H:%M} UTC: it is "
            "no checkpoint, and neither an engine nor a run needed it; choose a checkpoint"
        )


class VersionConflict(RegistryError):
    """A version was announced twice with different weights; versions are never reused."""

    def __init__(self, model: str, version: int, recorded: str, announced: str) -> None:
        super().__init__(
            f"{model}@v{version} is recorded with weights {recorded[:12]} and was announced again with "
            f"{announced[:12]}; versions are never reused"
        )


class HeadMoved(RegistryError):
    """Compare-and-set lost: head is not at the revision that the caller saw."""

    def __init__(self, model: str, expected: int, actual: int) -> None:
        super().__init__(
            f"head of {model!r} is at revision {actual}, not {expected}; read the model again and decide anew"
        )
        self.model, self.expected, self.actual = model, expected, actual


class GateDecides(RegistryError):
    """Training asked to move the head of a model that has a gate."""

    def __init__(self, model: str, taskset: str) -> None:
        super().__init__(
            f"head of {model!r} is moved by its gate on {taskset!r}, not by a training step; "
            "`upcycle models head --set` moves it manually"
        )


class PeerRefused(RegistryError):
    """Another service refused our request for good; the message carries its reason."""
