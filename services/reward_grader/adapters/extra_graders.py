"""Extra graders by import path: a `Rubric` or `Grader` of the SDK, or a function of the transcript."""

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from reward_grader.domain import ExtraGrader, GraderTranscript
from upcycle.graders import Grader, Rubric
from upcycle.shell_grader import IN_THE_SCENARIO, commands_refused, runs_commands

_NO_COMMANDS: Final = "this is the grader's process, which has the platform's keys and no isolation"


class ExtraGraderInvalid(ValueError):
    """An extra grader cannot be loaded; the text says which and why."""


def load_grader(path: str, weight: float, name: str) -> ExtraGrader:
    """The grader at `package.module:function`. Raises ExtraGraderInvalid."""
    module_name, _, attribute = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ExtraGraderInvalid(
            f"REWARD_GRADER_EXTRA_GRADERS: {path!r} cannot be loaded: {error}"
        ) from error
    if not callable(function):
        raise ExtraGraderInvalid(
            f"REWARD_GRADER_EXTRA_GRADERS: {path!r} is of type {type(function).__name__}, no function"
        )
    if isinstance(function, Grader | Rubric):
        if command := runs_commands(function.graders if isinstance(function, Rubric) else (function,)):
            raise ExtraGraderInvalid(
                f"REWARD_GRADER_EXTRA_GRADERS: {path!r} holds {command!r}, a BashGrader: {_NO_COMMANDS}; "
                f"{IN_THE_SCENARIO}"
            )
        function = _of_sdk(function)
    return ExtraGrader(name or attribute, weight, _without_commands(_as_async(function)))


def _without_commands(
    function: Callable[[GraderTranscript], Awaitable[float]],
) -> Callable[[GraderTranscript], Awaitable[float]]:
    async def graded(transcript: GraderTranscript) -> float:
        with commands_refused(_NO_COMMANDS):
            return await function(transcript)

    return graded


def _of_sdk(graders: Grader | Rubric) -> Callable[[GraderTranscript], float]:
    """What a scenario would get of it for the same answer and turns."""
    if isinstance(graders, Rubric):
        return lambda transcript: graders.grade(transcript.as_answer()).score
    return lambda transcript: graders(transcript.as_answer()).value


def _as_async(function: Callable[[GraderTranscript], Any]) -> Callable[[GraderTranscript], Awaitable[float]]:
    """A plain function runs in a thread, so that a slow one does not block the event loop."""
    if inspect.iscoroutinefunction(function):
        return function

    async def in_thread(transcript: GraderTranscript) -> float:
        score: float = await asyncio.to_thread(function, transcript)
        return score

    return in_thread
