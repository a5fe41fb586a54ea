"""Reads states of earlier trainers: files of torch.distributed.checkpoint, whose index is a pickle.
Only the command that converts them does; no trainer imports this.

The index is read through a list of what an index holds, and runs nothing: else a writer to the
object store would run code as the operator. Tensors are read with `weights_only=True`, by torch.
"""

from __future__ import annotations

import enum
import pickle
import warnings
from pathlib import Path, PurePath
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from training_states.converted import PICKLED_INDEX
from training_states.errors import InvalidStateFiles

_ALONE: Final = "torch.distributed is disabled, unavailable or uninitialized"
_ALLOWED: Final = frozenset({
    *((metadata.__name__, one) for one in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    (filesystem.__name__, "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
})  # fmt: skip
"""Beside the types of tensors, all that torch's writer puts into an index. Each holds what it is given."""


def read_pickled(directory: Path) -> dict[str, Tensor]:
    """All tensors of a state, on the host. Raises InvalidStateFiles."""
    try:
        reader = _StateReader(directory)
        stored = reader.read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(one.size, dtype=one.properties.dtype)
            for name, one in stored.items()
            if isinstance(one, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_ALONE)
            load(tensors, storage_reader=reader, no_dist=True)
    except (OSError, EOFError, pickle.UnpicklingError, CheckpointException) as error:
        raise InvalidStateFiles(f"{directory.name} holds no training state: {error}") from error
    return tensors


class _StateReader(filesystem.FileSystemReader):
    """Of the files in one folder. `read_metadata` raises UnpicklingError for an index that names anything
    else, a file elsewhere, or more bytes than its files have."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._directory = directory

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """As torch's, but allow-listed."""
        with (self._directory / PICKLED_INDEX).open("rb") as file:
            try:
                found = _AllowListed(file).load()
                self._check(found)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise pickle.UnpicklingError(f"its index is damaged: {error}") from error
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return cast(Metadata, found)

    def _check(self, found: object) -> None:
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError(f"its index is of type {type(found).__name__}")
        for one in found.storage_data.values():
            if PurePath(one.relative_path).name != one.relative_path:
                raise pickle.UnpicklingError(f"its index names the file {one.relative_path!r:.200}")
        stored = sum(path.stat().st_size for path in self._directory.iterdir())
        named = sum(map(_num_bytes, found.state_dict_metadata.values()))
        if named > stored:
            raise pickle.UnpicklingError(f"its index names {named} bytes, its files have {stored}")


class _AllowListed(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.0 to 3.11.3 write members of enums
            return _member_of
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_type and (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"its index names {module}.{name}, which no index holds")
        return super().find_class(module, name)


def _member_of(of: object, name: str) -> enum.Enum:
    """What `getattr` may do in an index."""
    if not isinstance(of, enum.EnumMeta) or name not in of.__members__:
        raise pickle.UnpicklingError(f"its index names builtins.getattr of {of!r:.80}, which no index holds")
    return cast(enum.Enum, of.__members__[name])


def _num_bytes(one: object) -> int:
    if not isinstance(one, TensorStorageMetadata):
        return 0
    return int(one.size.numel() * one.properties.dtype.itemsize)
