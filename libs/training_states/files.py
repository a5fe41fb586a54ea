"""Tensors of a state in a local folder, bit for bit: `tensors.safetensors`, and `index.json`, which says of
which format they are and which tensors make a whole state. Reading runs nothing of what is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training_states.errors import InvalidStateFiles
from training_states.room import room_for

_INDEX: Final = "index.json"
_TENSORS: Final = "tensors.safetensors"
_FORMAT: Final = "upcycle training state"
_VERSION: Final = 1


def write_tensors(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of the host, each contiguous and with memory of its own. directory: made where it
    lacks; it may hold what an earlier call wrote before the disk was full. Raises StoreFull where there is no
    room."""
    directory.mkdir(parents=True, exist_ok=True)
    index = {"format": _FORMAT, "version": _VERSION, "files": {_TENSORS: sorted(tensors)}}
    with room_for("a training state", sum(one.nbytes for one in tensors.values()), directory):
        save_file(dict(tensors), directory / _TENSORS)
        (directory / _INDEX).write_text(json.dumps(index, indent=1))


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """What `write_tensors` wrote, on the host. Raises InvalidStateFiles."""
    tensors: dict[str, Tensor] = {}
    for name, expected in _files(directory).items():
        found = dict(_read(directory / name))
        if found.keys() != set(expected):
            odd = sorted(found.keys() ^ set(expected))[:3]
            raise InvalidStateFiles(f"{_INDEX} and {name} disagree about the tensors {odd}")
        if twice := sorted(found.keys() & tensors.keys())[:3]:
            raise InvalidStateFiles(f"{_INDEX} names the tensors {twice} in two files")
        tensors.update(found)
    return tensors


def _files(directory: Path) -> dict[str, list[str]]:
    """Names of tensors by name of the file that holds them, as the index says. Raises InvalidStateFiles."""
    path = directory / _INDEX
    if not path.is_file():
        present = sorted(one.name for one in directory.iterdir())[:5]
        raise InvalidStateFiles(f"there is no {_INDEX} among its files {present}")
    try:
        index = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidStateFiles(f"{_INDEX} cannot be read: {error}") from error
    if not isinstance(index, dict):
        raise InvalidStateFiles(f"{_INDEX} is of type {type(index).__name__}")
    if (kind := (index.get("format"), index.get("version"))) != (_FORMAT, _VERSION):
        raise InvalidStateFiles(
            f"{_INDEX} is of format {kind[0]!r:.80}, version {kind[1]!r:.20}; this release reads "
            f"{_FORMAT!r}, version {_VERSION}"
        )
    files = index.get("files")
    if not isinstance(files, dict) or not files or not all(map(_is_list_of_names, files.values())):
        raise InvalidStateFiles(f"{_INDEX} does not say which tensors are in which file")
    there = {one.name for one in directory.iterdir()}
    for name in files:
        if not name.endswith(".safetensors") or name not in there:
            raise InvalidStateFiles(f"{_INDEX} names the file {name!r:.200}, and a state has no such file")
    return files


def _is_list_of_names(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(one, str) for one in found)


def _read(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Copies: what is read must not be a view of a file that is about to go."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                yield name, file.get_tensor(name).clone()
    except (OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:  # the last of torch
        why = str(error).partition("\n")[0]
        raise InvalidStateFiles(f"{path.name} cannot be read as safetensors: {why}") from error
