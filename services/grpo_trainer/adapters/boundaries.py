"""Turns the errors of libraries and of other services into the trainer's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from blob_store.errors import BlobError, CorruptBlob, MissingBlob
from grpo_trainer.domain.errors import BrokenArtifact, InvalidTrainingSpec, LineageTaken, TrainerError
from policy_files import CorruptPolicy, InvalidManifest, InvalidPolicyDir, UnknownPolicy, VersionTaken
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteError, RemoteNotFound, peer_errors

_BROKEN: Final = (CorruptBlob, MissingBlob, CorruptPolicy, InvalidManifest, UnknownPolicy, InvalidPolicyDir)


@contextmanager
def object_store(what: str) -> Iterator[None]:
    """A store that is unavailable or full raises Unavailable; wrong bytes raise BrokenArtifact. what:
    begins the text.
    """
    try:
        yield
    except VersionTaken as error:
        raise LineageTaken(f"{what}: {error}") from error
    except _BROKEN as error:
        raise BrokenArtifact(f"{what}: {error}") from error
    except ExceptionGroup as group:  # several files are fetched at once; the first failure stands for all
        with object_store(what):
            raise group.exceptions[0] from group
    except (Unavailable, BlobError) as error:
        raise Unavailable(f"the object store ({what}): {error}") from error


@contextmanager
def peer(what: str, *, passing: tuple[type[RemoteError], ...] = ()) -> Iterator[None]:
    """A service that does not answer raises Unavailable; a refusal raises InvalidTrainingSpec. passing:
    refusals that the caller handles.
    """
    try:
        with peer_errors(what):
            yield
    except passing:
        raise
    except RemoteError as error:
        raise InvalidTrainingSpec(str(error)) from error


@contextmanager
def lookup(what: str, missing: str, raises: type[TrainerError] = InvalidTrainingSpec) -> Iterator[None]:
    """As `peer`; raises `raises`, with a text that begins with `missing`, for what does not exist."""
    try:
        with peer(what, passing=(RemoteNotFound,)):
            yield
    except RemoteNotFound as error:
        raise raises(f"{missing}: {error}") from error
