"""Converts states that hold pickles, once, for an operator: reads each as its trainer would have, and stores
the same tensors without a pickle beside it. Nothing that was there is changed or removed.
"""

import asyncio
import json
import logging
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from blob_store import BlobError, BlobRef, BlobStore
from identities import objects
from training_states.converted import ConvertedState, are_pickled
from training_states.files import write_tensors
from training_states.pickled import read_pickled
from training_states.storing import put_files

log = logging.getLogger(__name__)

_FILES = TypeAdapter(tuple[BlobRef, ...])


@dataclass(frozen=True, slots=True)
class OldState:
    """A state that holds pickles, by its marker. files: as the marker names them. broken: why it cannot be
    converted; empty where nothing is seen."""

    key: str
    marker: bytes = b""
    files: tuple[BlobRef, ...] = ()
    broken: str = ""

    @property
    def num_bytes(self) -> int:
        """Of its files."""
        return sum(file.size_bytes for file in self.files)


async def old_states(store: BlobStore) -> tuple[int, list[OldState]]:
    """How many states there are, and those that hold pickles and were not converted, by key; one whose
    converted files are not all there was not. store: a SignedStore, where keys are in use: what is not proven
    is broken."""
    keys = await store.list("")
    known, num_states, found = set(keys), 0, list[OldState]()
    for key in keys:
        if objects.parse_step_marker(key) is None:
            continue
        state = await _looked_at(store, key)
        if state is None:
            continue
        num_states += 1
        if state.broken or (are_pickled(state.files) and not await _is_converted(store, state, known)):
            found.append(state)
    return num_states, found


async def convert_all(store: BlobStore, found: Sequence[OldState]) -> list[OldState]:
    """Convert each that is not broken. Returns those that are, and those of which the files are: the others
    do not wait for them."""
    left = [one for one in found if one.broken]
    for one in found:
        if one.broken:
            continue
        try:
            await _convert(store, one)
        except Exception as error:  # an index can break torch in more ways than it names; a disk may be full
            log.debug("state_not_converted", exc_info=True, extra={"key": one.key})
            left.append(OldState(one.key, one.marker, one.files, f"{error}" or repr(error)))
    return left


async def _convert(store: BlobStore, old: OldState) -> None:
    with tempfile.TemporaryDirectory(prefix="upcycle-state-") as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        before.mkdir()
        for file in old.files:
            await store.get_file(file, before / file.key.rpartition("/")[2])
        await asyncio.to_thread(lambda: write_tensors(after, read_pickled(before)))
        files = await put_files(store, old.key.rpartition("/")[0], after)
    await store.put(objects.converted_state(old.key), ConvertedState.of(old.marker, files).to_bytes())


async def _is_converted(store: BlobStore, old: OldState, known: Collection[str]) -> bool:
    """Whether a trainer can go on with what was converted. known: all keys. A record that is not proven, or
    of another marker, is written anew."""
    if (place := objects.converted_state(old.key)) not in known:
        return False
    try:
        record = await store.read(place)
        return record is not None and all(
            file.key in known for file in ConvertedState.parse(record, old.marker).files
        )
    except (BlobError, ValueError) as error:
        log.warning("conversion_unreadable", extra={"key": place, "error": str(error)})
        return False


async def _looked_at(store: BlobStore, key: str) -> OldState | None:
    """None for a claim, and for a state that was removed meanwhile."""
    try:
        data = await store.read(key)
        if data is None:
            return None
        plain: dict[str, Any] = json.loads(data)
        if "claim" in plain:
            return None
        return OldState(key, data, _FILES.validate_python(plain.get("session", plain)["tensors"]))
    except (BlobError, ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        return OldState(key, broken=str(error))
