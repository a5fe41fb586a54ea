"""Plays one task over a control channel: prompt, turns, grade. A failure of the environment is a value."""

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from upcycle.harness import Ending, TakenTurn, play_turns
from upcycle.harness.chat import ChatDriver, ChatPlayer, EpisodeWatcher
from upcycle.playing.environment_calls import (
    MAX_TURNS,
    EnvironmentCalls,
    EnvironmentFailed,
    OpenEnvironment,
    PlayFailure,
    PlayLimits,
)
from upcycle.rewards import EvaluationResult
from upcycle.states import ReadState, StateEntry, read_states
from upcycle.task_rows import Task
from upcycle.transcripts import ToolUse, Transcript, Turn

__all__ = [
    "MAX_TURNS",
    "EpisodeOpened",
    "OpenEnvironment",
    "PlayFailure",
    "PlayLimits",
    "PlayedEpisode",
    "play_episode",
]


@dataclass(slots=True)
class PlayedEpisode:
    """What happened. result: None where the environment failed, and `failure` says how."""

    task: Task
    prompt: list[Mapping[str, Any]] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    turns: list[TakenTurn] = field(default_factory=list)
    ending: Ending | None = None
    result: EvaluationResult | None = None
    failure: PlayFailure | None = None
    seconds: float = 0.0
    first_state: StateEntry | None = None
    last_state: StateEntry | None = None

    @property
    def states(self) -> list[ReadState]:
        """Of the environment: at the prompt, after each call, before the grade; none where it declares
        none."""
        after = [outcome.state for turn in self.turns for outcome in turn.outcomes]
        return read_states(one for one in (self.first_state, *after, self.last_state) if one is not None)

    @property
    def transcript(self) -> Transcript:
        """What a scenario grades beside the answer."""
        return Transcript(tuple(map(_turn, self.turns)))

    @property
    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.transcript.to_json()["turns"]
        return rows

    def to_json(self) -> dict[str, Any]:
        """The trajectory as one JSON object."""
        result, ending = self.result, self.ending
        return {
            "task": self.task.to_json(),
            "messages": self.messages or self.prompt,
            "tools": self.tools,
            "turns": [_noted(row, turn) for row, turn in zip(self._rows, self.turns, strict=True)],
            "stop_reason": str(ending.stop_reason) if ending else "failed",
            "answer": ending.answer if ending else "",
            "reward": result.score if result else None,
            "success": result.success if result else None,
            "subscores": [one.to_json() for one in result.subscores] if result else [],
            "info": dict(result.info) if result else {},
            "failure": self.failure.to_json() if self.failure else None,
            "states": [asdict(state) for state in self.states],
            "seconds": round(self.seconds, 3),
        }


class EpisodeOpened(EpisodeWatcher):
    """Sees also the prompt and the tools, before the first turn."""

    def on_opened(self, episode: PlayedEpisode) -> None:
        """The scenario yielded its prompt, and the environment listed its tools."""


async def play_episode(
    task: Task, environment: OpenEnvironment, player: ChatPlayer, limits: PlayLimits, watcher: EpisodeOpened
) -> PlayedEpisode:
    """Play one task.

    Raises what the player raises; what the environment does wrong is in the result."""
    episode, started_s = PlayedEpisode(task), time.monotonic()
    try:
        async with AsyncExitStack() as stack:
            calls = EnvironmentCalls(environment, limits, stack)
            await _play(episode, calls, limits, player, watcher)
    except EnvironmentFailed as failed:
        episode.failure = failed.failure
    finally:
        episode.seconds = time.monotonic() - started_s
    return episode


async def _play(
    episode: PlayedEpisode,
    calls: EnvironmentCalls,
    limits: PlayLimits,
    player: ChatPlayer,
    watcher: EpisodeOpened,
) -> None:
    episode.prompt = await calls.start(episode.task)
    episode.first_state = calls.first_state
    episode.tools = await calls.tools()
    watcher.on_opened(episode)
    driver = ChatDriver(
        episode.prompt, episode.tools, player, calls.call, budgets=limits.tokens, watcher=watcher
    )
    episode.messages, episode.turns = driver.messages, driver.turns
    episode.ending = await play_turns(driver, limits.turns)
    episode.last_state = await calls.last_state()
    episode.result = await calls.grade(episode.ending.answer, episode.transcript.to_json())


def _noted(row: dict[str, Any], taken: TakenTurn) -> dict[str, Any]:
    return {**row, "restarts_context": True} if taken.restarts_context else row


def _turn(taken: TakenTurn) -> Turn:
    pairs = zip(taken.said.tool_calls, taken.outcomes, strict=False)
    calls = (ToolUse(call.name, call.arguments, done.content, done.is_error) for call, done in pairs)
    return Turn(taken.said.text, tuple(calls), taken.said.reasoning)
