"""Folders of steps in the object store: where a durable state lies, of runs and of interactive sessions.

Such a folder holds the files of tensors under the digest of them all and, written last and only if
absent, the marker `state.json`: a state exists once its marker does, and only one trainer can write it.

Markers are a log: a trainer writes the marker after the newest one that it knows, and nothing else. A
trainer that takes a line over first writes a claim, with its token, where the trainer before it would write
its next marker; its own next marker has the next free number, `state-1.json`. So a trainer that lost its
lease and does not know it yet, because it was frozen or cut off, can never write a marker again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from blob_store import BlobRef, BlobStore, ref_of_bytes
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.domain.errors import BrokenArtifact, LineageTaken, OldState
from grpo_trainer.domain.states import SessionState
from identities import objects
from identities.objects import (
    parse_signature,
    parse_step_marker,
    parse_training_step,
    step_marker,
    training_step,
)
from training_states import CONVERT, ConvertedState, are_pickled
from training_states.storing import put_files

State = TypeVar("State", bound="StepState")


@dataclass(frozen=True, slots=True)
class Claim:
    """A marker that holds no state: after it, only a trainer with this token, or a larger
    one, may write markers of the run.

    by: the trainer's name. state: key of the newest marker with a state; empty where there is none. failure:
    the line ends here, with this failure.
    """

    token: int
    by: str
    state: str = ""
    failure: Mapping[str, Any] | None = None


def markers(keys: Iterable[str]) -> list[str]:
    """The markers among some keys of one line, in the order in which they were written."""
    places = {key: place for key in keys if (place := parse_step_marker(key)) is not None}
    return sorted(places, key=lambda key: places[key])


def signatures(signed: Collection[str], keys: Iterable[str]) -> set[str]:
    """The signatures among some keys that are of these objects."""
    return {key for key in keys if parse_signature(key) in signed}


def by_folder(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys below step folders, by folder. keys: as a store lists them, sorted, and so are the folders."""
    folders: dict[str, list[str]] = {}
    for key in keys:
        if (found := parse_training_step(key)) is not None:
            folders.setdefault(found.folder, []).append(key)
    return folders


def old(
    folders: Mapping[str, Collection[str]], last: str, *, newest: int, is_over: bool = False
) -> list[str]:
    """The folders before the `newest` states; if nothing is written any more, the folders after them too. A
    folder without a marker is no state: a trainer may be writing it, or was killed there. last: marker of the
    newest state; later ones are claims."""
    upto = last.rpartition("/")[0]
    kept = [folder for folder, keys in folders.items() if folder <= upto and markers(keys)][-newest:]
    return [one for one in folders if one not in kept and (is_over or (kept and one < kept[0]))]


async def delete(store: BlobStore, keys: Iterable[str]) -> None:
    """Delete objects of one folder. The marker goes first: a state is whole or it is not there."""
    for key in sorted(keys, key=lambda key: (parse_step_marker(key) is None, key)):
        await store.delete(key)


class StepState(Protocol):
    """What is stored of a step, of a run or of an interactive session."""

    @property
    def session(self) -> SessionState: ...

    def with_tensors(self, files: tuple[BlobRef, ...]) -> Self:
        """The same state with the claim checks of its files."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, in a stable order."""


class StepStates(Generic[State]):
    """Reads and writes the step folders of one kind of state. line: the folder that precedes a step's.
    first_step: of a line's first state."""

    def __init__(
        self,
        store: BlobStore,
        line: Callable[[SessionState], str],
        parse: Callable[[Any], State],
        *,
        first_step: int = 0,
    ) -> None:
        self._first_step = first_step
        self._store = store
        self._line = line
        self._parse = parse
        self._numbers: dict[str, int] = {}
        self._committed: dict[str, str] = {}

    async def claim(
        self, line: str, *, token: int, by: str, failure: Mapping[str, Any] | None = None
    ) -> State | None:
        """Make a line that of the trainer `by`: no trainer with a smaller token writes a marker of it after
        this. Returns its newest state. failure: the line ends. Raises LineageTaken where a larger token has
        claimed it, or it has ended; BrokenArtifact where the newest state cannot be read."""
        while True:
            with object_store(line):
                known = markers(await self._store.list(f"{line}/"))
            state, newest = await self.newest_of(known)
            if newest is not None and (newest.token > token or newest.failure is not None):
                raise LineageTaken(
                    f"{line} belongs to {newest.by}, token {newest.token}: not to {by}, {token}"
                )
            step, number = _after(known, state, self._first_step)
            written = "" if state is None else self._marker_key(state)
            data = json.dumps({"claim": asdict(Claim(token, by, written, failure))}, sort_keys=True).encode()
            folder = training_step(line, step)
            with object_store(line):
                is_ours = await self._store.put_if_absent(step_marker(folder, number), data)
            if is_ours is not None:
                self._numbers[folder] = number + 1
                return state

    async def newest_of(self, known: Sequence[str]) -> tuple[State | None, Claim | None]:
        """The newest state of a line by its markers in order, and the newest claim after it. Raises
        BrokenArtifact."""
        while known and await self._is_torn(known[-1]):
            known = known[:-1]
        if not known:
            return None, None
        newest = await self._read_marker(known[-1])
        if not isinstance(newest, Claim):
            return newest, None
        return (await self.read(newest.state) if newest.state else None), newest

    async def _is_torn(self, key: str) -> bool:
        """Whether a marker is empty: so a store may keep one whose writer was killed between the head and the
        body of its request. It says nothing, and its number is not used again."""
        with object_store(key):
            found = await self._store.stat(key)
        return found is not None and found.size_bytes == 0

    async def _newest_marker(self, known: Sequence[str]) -> str:
        """The marker of the newest state; empty where there is none. Where the newest marker cannot be read
        it is taken for a state."""
        if not known or known[-1] in self._committed.values():
            return known[-1] if known else ""
        try:
            newest = await self._read_marker(known[-1])
        except BrokenArtifact:
            return known[-1]
        return newest.state if isinstance(newest, Claim) else known[-1]

    def _marker_key(self, state: State) -> str:
        folder = self._folder(state)
        return step_marker(folder, self._numbers.get(folder, 0))

    async def commit(self, state: State, tensors: Path | None) -> State:
        """Write the files of the local folder `tensors`, then the marker. Raises LineageTaken where another
        marker is there: another trainer has claimed the line."""
        folder = self._folder(state)
        with object_store(_named(state)):
            if tensors is not None:
                state = state.with_tensors(await put_files(self._store, folder, tensors))
            marker = await self._store.put_if_absent(self._marker_key(state), _bytes(state))
        if marker is None:
            raise LineageTaken(f"{self._marker_key(state)} is already written: another trainer has the line")
        self._committed[self._line(state.session)] = self._marker_key(state)
        return state

    async def prove(self, state: State, recorded: BlobRef | None) -> None:
        """Compare the marker of a state with what the registry recorded of it; None: it knows none, as of a
        step that was not announced yet. Raises BrokenArtifact where the marker was replaced since."""
        if recorded is None:
            return
        key = self._marker_key(state)
        with object_store(key):
            data = await self._store.read(key) or b""
        found = ref_of_bytes(key, data)
        if found.sha256 != recorded.sha256 or not self._says(data, state):
            raise BrokenArtifact(
                f"the marker {key} was replaced: its sha256 is {found.sha256}, and the registry recorded "
                f"{recorded.sha256} with version {state.session.version}; put back what a backup has, or "
                "begin a new run from a checkpoint"
            )

    def _says(self, data: bytes, state: State) -> bool:
        """Whether these bytes are the state: it was read before them, and may have been replaced between."""
        return _bytes(self._parse(json.loads(data))) == _bytes(state)

    async def tensors(self, state: State, directory: Path) -> None:
        """Fetch the files of a state into an empty local folder. Raises OldState where they hold a pickle and
        they are not converted."""
        with object_store(f"tensors of {_named(state)}"):
            files = state.session.tensors
            if are_pickled(files):
                files = await self._converted(state)
            for file in files:
                await self._store.get_file(file, directory / file.key.rpartition("/")[2])

    async def _converted(self, state: State) -> tuple[BlobRef, ...]:
        """The files with the same tensors and without a pickle."""
        key = self._marker_key(state)
        place = objects.converted_state(key)
        record, marker = await self._store.read(place), await self._store.read(key)
        if record is None or marker is None:
            raise OldState(
                f"the training state {key} is in files of an earlier release, which hold a pickle: no "
                f"trainer opens them; an operator converts them with `{CONVERT}`"
            )
        try:
            return ConvertedState.parse(record, marker).files
        except ValueError as error:
            raise BrokenArtifact(f"{place} is no conversion of {key}: {error}") from error

    def marker_of(self, state: State) -> BlobRef:
        """Claim check of the marker of a committed state."""
        return ref_of_bytes(self._marker_key(state), _bytes(state))

    async def read(self, key: str) -> State:
        """The state of a marker that was listed. Raises BrokenArtifact."""
        found = await self._read_marker(key)
        if isinstance(found, Claim):
            raise BrokenArtifact(f"{key} holds the claim of {found.by}, and no training state")
        return found

    async def _read_marker(self, key: str) -> State | Claim:
        with object_store(key):
            data = await self._store.read(key)
        if data is None:
            raise BrokenArtifact(f"{key} was listed and is gone: another program deletes training states")
        try:
            plain = json.loads(data)
            found = Claim(**plain["claim"]) if "claim" in plain else self._parse(plain)
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenArtifact(f"{key} is no training state that this trainer reads: {error}") from error
        if not isinstance(found, Claim):
            _, self._numbers[key.rpartition("/")[0]] = parse_step_marker(key) or (0, 0)
        return found

    def _folder(self, state: State) -> str:
        return training_step(self._line(state.session), state.session.step)


def _after(known: Sequence[str], state: StepState | None, first_step: int) -> tuple[int, int]:
    """Step and number of the next marker of a line with these markers and this newest state."""
    step = first_step if state is None else state.session.step + 1
    last = parse_step_marker(known[-1]) if known else None
    return step, last[1] + 1 if last is not None and last[0] == step else 0


def _named(state: StepState) -> str:
    return f"step {state.session.step} of {state.session.spec.run_id}"


def _bytes(state: StepState) -> bytes:
    return json.dumps(state.to_json(), sort_keys=True, separators=(",", ":")).encode()
