"""The states of an episode: what the environment's `@env.state()` returned, from the prompt to the grade."""

import inspect
import json
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from upcycle.errors import ScenarioError
from upcycle.json_patches import difference, patched
from upcycle.raised import RAISED, described

MAX_STATE_BYTES: Final = 64 * 1024
"""Of one state as JSON."""
MAX_STATES_BYTES: Final = 4 * 1024 * 1024
"""Of all states of an episode, as they are kept."""
STATE_S: Final = 2.0
"""How long the function may take."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One state: its JSON, or the JSON patch that makes it of the state before, or why there is none."""

    value: str = ""
    patch: str = ""
    note: str = ""

    def to_json(self) -> dict[str, str]:
        """The fields that are not empty."""
        row = {"value": self.value, "patch": self.patch, "note": self.note}
        return {name: text for name, text in row.items() if text}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "StateEntry":
        """The inverse of `to_json`."""
        return cls(str(row.get("value", "")), str(row.get("patch", "")), str(row.get("note", "")))


@dataclass(frozen=True, slots=True)
class ReadState:
    """A state as a reader has it. note: why there is no value; the value is None then."""

    value: Any = None
    note: str = ""


def read_states(entries: Iterable[StateEntry]) -> list[ReadState]:
    """Each state whole; a patch is applied to the last one that has a value."""
    states: list[ReadState] = []
    last: Any = None
    for entry in entries:
        try:
            if entry.note or not (entry.value or entry.patch):
                states.append(ReadState(note=entry.note or "it was not kept"))
                continue
            last = json.loads(entry.value) if entry.value else patched(last, json.loads(entry.patch))
            states.append(ReadState(last))
        except (ValueError, TypeError, RecursionError) as error:
            states.append(ReadState(note=f"it cannot be read: {error}"))
    return states


class StateLog:
    """The states of one episode, in the process of its environment."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._entries: list[StateEntry] = []
        self._last: Any = None
        self._num_bytes = 0

    @property
    def values(self) -> tuple[Any, ...]:
        """As graders read them; None for one that is left out."""
        return tuple(state.value for state in read_states(self._entries))

    async def first(self) -> StateEntry:
        """The state at the prompt. Raises ScenarioError where the function fails: no policy took part."""
        try:
            text = await self._read()
        except RAISED as error:
            raise ScenarioError(f"@env.state() failed: {described(error)}") from error
        return self._kept(text)

    async def next(self) -> StateEntry:
        """The state now. Where the function fails, the entry says so with file and line, and the episode goes
        on: what the policy did may have caused it."""
        try:
            text = await self._read()
        except RAISED as error:
            log.warning("@env.state() failed", exc_info=error)
            return self._noted(f"@env.state() failed: {described(error)}{_place(error)}")
        return self._kept(text)

    async def _read(self) -> str:
        import asyncio  # here: who declares an environment needs no event loop

        try:
            async with asyncio.timeout(STATE_S):
                value: Any = self._function()
                if inspect.isawaitable(value):
                    value = await value
        except TimeoutError as error:
            raise TimeoutError(f"it took longer than {STATE_S:g} s") from error
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"what it returned is not JSON: {error}") from error

    def _kept(self, text: str) -> StateEntry:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_STATE_BYTES:
            return self._noted(f"left out: the state has {size} bytes, limit {MAX_STATE_BYTES}")
        value, patch = json.loads(text), ""
        if any(entry.value for entry in self._entries):
            patch = json.dumps(difference(self._last, value), ensure_ascii=False, separators=(",", ":"))
        is_shorter = bool(patch) and len(patch) < len(text)
        entry = StateEntry(patch=patch) if is_shorter else StateEntry(text)
        kept = len(entry.patch) if is_shorter else size
        if self._num_bytes + kept > MAX_STATES_BYTES:
            return self._noted(f"left out: the states of the episode exceed {MAX_STATES_BYTES} bytes")
        self._num_bytes += kept
        self._last = value
        self._entries.append(entry)
        return entry

    def _noted(self, note: str) -> StateEntry:
        entry = StateEntry(note=note)
        self._entries.append(entry)
        return entry


def _place(error: BaseException) -> str:
    """` (env.py:12)`: where it was raised."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
