"""An environment of another library as one of ours: rows are tasks, its tools are tools, its rubric rewards.

Each session of the server is a forked process, so there is one play at a time in it.
"""

import hashlib
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from upcycle.environment.core import EXTERNAL_ERRORS, Environment
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.errors import ArgumentsInvalid, InfrastructureError, ToolFailed
from upcycle.importers.errors import ImportRefused
from upcycle.rewards import SubScore
from upcycle.task_rows import EnvironmentRef, Task, canonical_json
from upcycle.transcripts import Answer, Turn

SCENARIO: Final = "row"
TRAIN: Final = "train"
EVAL: Final = "eval"
_TOLERANCE: Final = 1e-9
_OF_CLIENTS: Final = ("aiohttp", "anthropic", "httpcore", "httpx", "httpx2", "openai", "requests", "urllib3")
_CONTENT_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class ScoredFunction:
    """One function of a rubric: what it returned, and its weight in the reward."""

    name: str
    value: float
    weight: float


@dataclass(frozen=True, slots=True)
class Scored:
    """What a rubric said. notes: what else it sent, as JSON."""

    reward: float
    functions: Sequence[ScoredFunction] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)


class ForeignPlay(Protocol):
    """One row that is played."""

    async def begin(self) -> list[dict[str, Any]]:
        """The messages of the prompt."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What a tool returned, or said was wrong."""
        ...

    async def score(self, answer: Answer) -> Scored:
        """By its rubric."""
        ...


class ForeignEnvironment(Protocol):
    """What is served. version: of the library."""

    name: str
    version: str

    @property
    def rows(self) -> Mapping[str, Sequence[Any]]:
        """Of each split, as JSON."""
        ...

    @property
    def weights(self) -> Sequence[float]:
        """Of the functions of its rubric."""
        ...

    async def tools(self) -> Sequence[ToolSpec]:
        """Those of every row."""
        ...

    def play(self, split: str, row: int) -> ForeignPlay:
        """A new play of a row."""
        ...


@dataclass(frozen=True, slots=True)
class RewardRange:
    """Rewards count as their part of this range. Raises ImportRefused."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ImportRefused(
                f"the range of rewards is {self.low:g} to {self.high:g}", "give low, then high"
            )

    @classmethod
    def of_weights(cls, weights: Sequence[float]) -> "RewardRange":
        """Of functions that return 0 to 1. Raises ImportRefused where the sum may leave [0, 1]: how much a
        reward counts is then for a person to say."""
        low, high = (sum(one for one in weights if keep(one)) for keep in (_is_negative, _is_positive))
        if low < 0 or high > 1 + _TOLERANCE:
            shown = ", ".join(f"{one:g}" for one in weights if one)
            raise ImportRefused(
                f"its weights are {shown}: rewards may be from {low:g} to {high:g}, and ours are from 0 to 1",
                f"give --reward-range {low:g} {high:g}, and a reward counts as its part of that",
            )
        return cls()

    def part(self, reward: float) -> float:
        """From 0 to 1; other numbers for a reward outside the range, which no grade takes."""
        part = (reward - self.low) / (self.high - self.low)
        is_inside = -_TOLERANCE <= part <= 1 + _TOLERANCE
        return min(1.0, max(0.0, part)) if is_inside else part


def _is_negative(weight: float) -> bool:
    return weight < 0


def _is_positive(weight: float) -> bool:
    return weight > 0


class ImportedEnvironment(Environment):
    """Serves a foreign environment. Its one scenario is `row`."""

    def __init__(self, foreign: ForeignEnvironment, rewards: RewardRange) -> None:
        super().__init__(foreign.name, version=foreign.version, external_errors=EXTERNAL_ERRORS)
        self.source = ""
        self._foreign, self._rewards = foreign, rewards
        self._play: ForeignPlay | None = None
        self._is_open = False
        self.scenario(SCENARIO)(self._row)

    async def open(self, *, limit_s: float | None = None) -> None:
        """Learn its tools. Idempotent."""
        if not self._is_open:
            for spec in await self._foreign.tools():
                self._add_tool(_RowTool(spec, self))
            self._is_open = True

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """A tool of the row that is played. Raises ToolFailed."""
        if self._play is None:
            raise ToolFailed(f"{name}: no row is played")
        try:
            return await self._play.call(name, arguments)
        except Exception as error:
            raise not_reached(error) or ToolFailed(f"{name}: {type(error).__name__}: {error}") from error

    def tasks(self, split: str, url: str) -> list[Task]:
        """The rows of a split, as they are served there."""
        where = EnvironmentRef(self.name, url=url)
        return [
            Task(
                where,
                SCENARIO,
                canonical_json({"row": number, "split": split, "content": content_of(row)}),
                f"{split}-{number:06d}",
            )
            for number, row in enumerate(self._foreign.rows[split])
        ]

    async def _row(self, row: int, split: str = TRAIN, content: str = "") -> AsyncGenerator[Any, Any]:
        """Play a row of its data set.

        Args:
            row: its number, from 0
            split: train or eval
            content: a digest of the row; another row under its number is refused
        """
        self._check(row, split, content)
        play = self._play = self._foreign.play(split, row)
        try:
            prompt = await play.begin()
            answer = yield prompt
            yield self._result(await _scored(play, answer))
        finally:
            self._play = None

    def _check(self, row: int, split: str, content: str) -> None:
        rows = self._foreign.rows.get(split)
        if rows is None:
            raise ArgumentsInvalid(f"no split {split!r}", f"it has {', '.join(self._foreign.rows)}")
        if not 0 <= row < len(rows):
            raise ArgumentsInvalid(f"{split} has {len(rows)} rows, and no row {row}")
        if content not in ("", content_of(rows[row])):
            raise ArgumentsInvalid(
                f"row {row} of {split} is another one than the task means",
                "write the tasks again: its data set has changed",
            )

    def _result(self, scored: Scored) -> Mapping[str, Any]:
        kept = [one for one in scored.functions if one.weight > 0 and 0 <= one.value <= 1]
        others = {one.name: one.value for one in scored.functions if one not in kept}
        info = {"reward": scored.reward, **({"metrics": others} if others else {}), **scored.notes}
        subscores = tuple(SubScore(one.name, one.value, one.weight) for one in kept)
        return {"score": self._rewards.part(scored.reward), "subscores": subscores, "info": info}


@dataclass(frozen=True, slots=True)
class _RowTool:
    """A tool of the row that is played."""

    spec: ToolSpec
    owner: ImportedEnvironment

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Its own checks of the arguments are those of the other library."""
        return await self.owner.call(self.spec.name, arguments)


async def _scored(play: ForeignPlay, answer: Answer) -> Scored:
    try:
        return await play.score(answer)
    except Exception as error:
        if (failed := not_reached(error)) is not None:
            raise failed from error
        raise


def not_reached(error: BaseException) -> InfrastructureError | None:
    """Where a server could not be asked, such as a judge: no answer of the policy caused it."""
    cause: BaseException | None = error
    while cause is not None:
        package = type(cause).__module__.partition(".")[0]
        if isinstance(cause, ConnectionError | TimeoutError | InfrastructureError) or package in _OF_CLIENTS:
            return InfrastructureError(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return None


def content_of(row: Any) -> str:
    """A digest of what a row holds. Dates and the like count as their text."""
    text = json.dumps(row, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_CONTENT_CHARS]


def with_calls(turns: Sequence[Turn], call: Callable[..., Any]) -> Iterator[tuple[Turn, list[Any]]]:
    """Each turn with its calls, as `call` makes them; their ids are numbered over all turns."""
    numbers = itertools.count()
    for turn in turns:
        yield (
            turn,
            [
                call(id=f"call-{next(numbers)}", name=use.name, arguments=json.dumps(dict(use.arguments)))
                for use in turn.tool_calls
            ],
        )
