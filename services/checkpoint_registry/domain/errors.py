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
        super().__init__(
            f"no version {version} of model {model!r} is recorded as published; "
            f"`upcycle models checkpoints {model}` lists those that can be chosen"
        )


class VersionRemoved(RegistryError):
    """The version was published, and retention has removed it."""

    def __init__(self, model: str, version: int, at: datetime) -> None:
        super().__init__(
            f"version {version} of model {model!r} was removed at {at:%Y-%m-%d %H:%M} UTC: it is no "
            "checkpoint, and no engine, run or hold needed it; choose a checkpoint"
        )


class UnknownKey(RegistryError):
    """No key of that id was made."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"no key {key_id!r:.80} was made; `upcycle keys list --all` shows all by their ids")


class TooManyKeys(RegistryError):
    """Every server has all valid keys in memory, so their number is limited."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} keys are valid, and no more may be; revoke one with `upcycle keys revoke`")


class KeysNeedAccess(RegistryError):
    """The platform serves callers without a key, and would give a key to any of them."""

    def __init__(self) -> None:
        super().__init__(
            "keys are neither made nor revoked here: the platform serves callers without a key "
            "(UPCYCLE_ACCESS_OPEN), and any of them could; unset it"
        )


class NoRoom(RegistryError):
    """Every place for policies beside the channels' is taken; the text says by what, for which holder and
    until when."""


class NoEngine(RegistryError):
    """No engine supervisor runs."""


class OtherBase(RegistryError):
    """The engines that could hold the policy are of models of another base."""


class AlreadyHead(RegistryError):
    """A canary release of what serves everything."""

    def __init__(self, checkpoint_id: str, model: str) -> None:
        super().__init__(
            f"{checkpoint_id!r} is head of {model!r}: a canary release serves another checkpoint"
        )


class NoCanaryRelease(RegistryError):
    """None is under way."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"no canary release of {model!r} is under way; `upcycle models canary {model}` lists its changes"
        )


class ReleaseUnderWay(RegistryError):
    """The registry may begin a release of its own only where none is."""

    def __init__(self, model: str, version: int) -> None:
        super().__init__(f"a canary release of {model!r}, v{version}, is under way and stays")


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
