"""States that were written before states held no pickle, and what says that one was converted.

A marker never changes, so a converted state keeps its own; beside it lies, signed by the operator, the record
of the files that hold the same tensors without a pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, Self

from pydantic import TypeAdapter

from blob_store import BlobRef

CONVERT: Final = "upcycle states convert --apply"
"""The command that converts them."""
PICKLED_INDEX: Final = ".metadata"
"""The file of a state of an earlier trainer that is a pickle."""


def are_pickled(files: Iterable[BlobRef]) -> bool:
    """Whether a state of these files was written by a trainer that wrote pickles."""
    return any(file.key.rpartition("/")[2] == PICKLED_INDEX for file in files)


@dataclass(frozen=True, slots=True)
class ConvertedState:
    """Says that the state of a marker is in these files, too. marker: sha256 of the marker's bytes."""

    marker: str
    files: tuple[BlobRef, ...]

    @classmethod
    def of(cls, marker: bytes, files: tuple[BlobRef, ...]) -> Self:
        """marker: its bytes."""
        return cls(hashlib.sha256(marker).hexdigest(), files)

    @classmethod
    def parse(cls, data: bytes, marker: bytes) -> ConvertedState:
        """What `to_bytes` wrote for this marker. Raises ValueError."""
        found = _RECORDS.validate_json(data)
        if found.marker != (now := hashlib.sha256(marker).hexdigest()):
            raise ValueError(f"it is of a marker with sha256 {found.marker}, and the marker's is {now}")
        if are_pickled(found.files) or not found.files:
            raise ValueError("it names no files without a pickle")
        return found

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


_RECORDS: Final = TypeAdapter(ConvertedState)
