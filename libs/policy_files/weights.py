"""safetensors headers, read without torch: what tensors a file holds, and whether it is whole."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policy_files.adapters import ADAPTER_FOLDER
from policy_files.errors import InvalidPolicyDir

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a weights file; `dtype` as safetensors spells it (F32, BF16)."""

    dtype: str
    shape: tuple[int, ...]


def tensors_of_directory(directory: Path) -> dict[str, TensorInfo]:
    """Name -> dtype and shape over every .safetensors file of the directory, but for those of its adapter.
    Raises InvalidPolicyDir."""
    found: dict[str, TensorInfo] = {}
    for path in sorted(directory.rglob("*.safetensors")):
        if path.relative_to(directory).parts[0] == ADAPTER_FOLDER:
            read_tensors(path)  # whole, too
            continue
        tensors = read_tensors(path)
        if twice := sorted(found.keys() & tensors.keys()):
            raise InvalidPolicyDir(f"{directory}: tensors stored in two files: {', '.join(twice[:5])}")
        found.update(tensors)
    if not found:
        raise InvalidPolicyDir(f"{directory} has no .safetensors file with a tensor in it")
    return found


def read_tensors(path: Path) -> dict[str, TensorInfo]:
    """Name -> dtype and shape. Raises InvalidPolicyDir where header and size of the file do not agree."""
    header, data_bytes = _read_header(path)
    spans: list[tuple[int, int]] = []
    found: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        found[name], span = _tensor(path, name, entry)
        spans.append(span)
    _check_spans(path, sorted(spans), data_bytes)
    return found


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
                raise InvalidPolicyDir(f"{path} is no safetensors file: {size} bytes, header length {length}")
            header = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidPolicyDir):
            raise
        raise InvalidPolicyDir(f"{path} cannot be read as safetensors: {error}") from error
    if not isinstance(header, dict):
        raise InvalidPolicyDir(f"{path}: the safetensors header is of type {type(header).__name__}")
    return header, size - 8 - length


def _tensor(path: Path, name: str, entry: Any) -> tuple[TensorInfo, tuple[int, int]]:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
        expected = _DTYPE_BYTES[dtype] * math.prod(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidPolicyDir(f"{path}: tensor {name!r} is described wrongly: {entry!r}") from error
    if min(shape, default=0) < 0 or end - begin != expected:
        raise InvalidPolicyDir(
            f"{path}: tensor {name!r} {dtype}{list(shape)} has {end - begin} bytes, not {expected}"
        )
    return TensorInfo(dtype, shape), (begin, end)


def _check_spans(path: Path, spans: list[tuple[int, int]], data_bytes: int) -> None:
    position = 0
    for begin, end in spans:
        if begin != position:
            raise InvalidPolicyDir(f"{path}: tensor data has a hole or an overlap at byte {position}")
        position = end
    if position != data_bytes:
        raise InvalidPolicyDir(f"{path} holds {data_bytes} bytes of tensors, its header describes {position}")
