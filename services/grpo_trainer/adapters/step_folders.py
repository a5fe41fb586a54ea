"""Folders of steps in the object store: where a durable state lies, of runs and of interactive sessions.

Such a folder holds the files of tensors under the digest of them all and, written last and only if
absent, the marker `state.json`: a state exists once its marker does, and only one trainer can write it.

Markers are a log: a trainer writes the marker after the newest one that it knows, and nothing else. A
trainer that takes a line over first writes a claim, with its token, where the trainer before it would write
its next marker; its own next marker has the next free number, `state-1.json`. So a trainer that lost its
lease and does not know it yet, because it was frozen or cut off, can never write a marker again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from blob_store import BlobRef, BlobStore, ref_of_bytes, ref_of_file
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.domain.errors import BrokenArtifact, LineageTaken
from grpo_trainer.domain.states import SessionState
from identities.objects import parse_training_step, training_step

State = TypeVar("State", bound="StepState")

MARKER: Final = "state.json"
_NAMES: Final = re.compile(r"state(?:-(\d{1,9}))?\.json")


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
    places = {key: place for key in keys if (place := _place(key)) is not None}
    return sorted(places, key=lambda key: places[key])


def _place(key: str) -> tuple[int, int] | None:
    """Step and number of a marker; None for every other key."""
    found, name = parse_training_step(key), _NAMES.fullmatch(key.rpartition("/")[2])
    if found is None or name is None or f"{found.folder}/{name[0]}" != key:
        return None
    return found.step, int(name[1] or 0)


def _marker(folder: str, number: int) -> str:
    return f"{folder}/{MARKER}" if number == 0 else f"{folder}/state-{number}.json"


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
    for key in sorted(keys, key=lambda key: (_place(key) is None, key)):
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
                is_ours = await self._store.put_if_absent(_marker(folder, number), data)
            if is_ours is not None:
                self._numbers[folder] = number + 1
                return state

    async def newest_of(self, known: Sequence[str]) -> tuple[State | None, Claim | None]:
        """The newest state of a line by its markers in order, and the newest claim after it. Raises
        BrokenArtifact."""
        if not known:
            return None, None
        newest = await self._read_marker(known[-1])
        if not isinstance(newest, Claim):
            return newest, None
        return (await self.read(newest.state) if newest.state else None), newest

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
        return _marker(folder, self._numbers.get(folder, 0))

    async def commit(self, state: State, tensors: Path | None) -> State:
        """Write the files of the local folder `tensors`, then the marker. Raises LineageTaken where another
        marker is there: another trainer has claimed the line."""
        folder = self._folder(state)
        with object_store(_named(state)):
            if tensors is not None:
                state = state.with_tensors(await self._put_tensors(folder, tensors))
            marker = await self._store.put_if_absent(self._marker_key(state), _bytes(state))
        if marker is None:
            raise LineageTaken(f"{self._marker_key(state)} is already written: another trainer has the line")
        self._committed[self._line(state.session)] = self._marker_key(state)
        return state

    async def _put_tensors(self, folder: str, tensors: Path) -> tuple[BlobRef, ...]:
        """The content is in the keys: another trainer's files cannot replace these."""
        shas = await asyncio.to_thread(_hashed, tensors)
        whole = hashlib.sha256("".join(shas.values()).encode()).hexdigest()[:16]
        put, into = self._store.put_file, f"{folder}/{whole}"
        return tuple([await put(f"{into}/{one.name}", one, sha256=sha) for one, sha in shas.items()])

    async def tensors(self, state: State, directory: Path) -> None:
        """Fetch the files of a state into an empty local folder."""
        with object_store(f"tensors of {_named(state)}"):
            for file in state.session.tensors:
                await self._store.get_file(file, directory / file.key.rpartition("/")[2])

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
            _, self._numbers[key.rpartition("/")[0]] = _place(key) or (0, 0)
        return found

    def _folder(self, state: State) -> str:
        return training_step(self._line(state.session), state.session.step)


def _after(known: Sequence[str], state: StepState | None, first_step: int) -> tuple[int, int]:
    """Step and number of the next marker of a line with these markers and this newest state."""
    step = first_step if state is None else state.session.step + 1
    last = _place(known[-1]) if known else None
    return step, last[1] + 1 if last is not None and last[0] == step else 0


def _named(state: StepState) -> str:
    return f"step {state.session.step} of {state.session.spec.run_id}"


def _bytes(state: StepState) -> bytes:
    return json.dumps(state.to_json(), sort_keys=True, separators=(",", ":")).encode()


def _hashed(directory: Path) -> dict[Path, str]:
    """The files of a folder, sorted, with their sha256."""
    return {file: ref_of_file(file.name, file).sha256 for file in sorted(directory.iterdir())}
