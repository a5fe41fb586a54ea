"""What an environment's author runs in each episode's process before its first prompt and at its end."""

import inspect
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from upcycle.environment.schema import call_schema
from upcycle.errors import DefinitionError, ScenarioError
from upcycle.raised import RAISED, deed

F = TypeVar("F", bound=Callable[..., Any])

SHUTDOWN_S: Final = 10.0
"""How long all functions of `@env.shutdown` may take; the process is ended then."""

log = logging.getLogger(__name__)


class Lifecycle:
    """The functions of `@env.initialize` and `@env.shutdown`; each runs once in a process that opens."""

    def __init__(self) -> None:
        self._first: list[Callable[[], Any]] = []
        self._last: list[Callable[[], Any]] = []
        self._has_begun = False

    @property
    def shuts_down(self) -> bool:
        """Something is to be run at the end."""
        return bool(self._last)

    def initialize(self, function: F) -> F:
        """Raises DefinitionError for a function that takes arguments."""
        self._first.append(_without_arguments(function, "@env.initialize"))
        return function

    def shutdown(self, function: F) -> F:
        """As `initialize`."""
        self._last.append(_without_arguments(function, "@env.shutdown"))
        return function

    async def begin(self) -> None:
        """Run what was declared for the beginning, in order. Idempotent. Raises ScenarioError, from what a
        function raised; the next call begins again."""
        if self._has_begun:
            return
        self._has_begun = True
        for function in self._first:
            try:
                await _called(function)
            except RAISED as error:
                self._has_begun = False
                name = getattr(function, "__name__", "?")
                text = f"@env.initialize: {name} {deed(error)}"
                raise ScenarioError(text) from error

    async def end(self) -> None:
        """Run what was declared for the end, the last one first, where it had begun. What a function raises
        is logged: the reward is known already."""
        if not self._has_begun:
            return
        self._has_begun = False
        for function in reversed(self._last):
            try:
                await _called(function)
            except RAISED:
                log.warning("@env.shutdown: %s raised", getattr(function, "__name__", "?"), exc_info=True)


async def _called(function: Callable[[], Any]) -> None:
    done = function()
    if inspect.isawaitable(done):
        await done


def _without_arguments(function: Callable[..., Any], decorator: str) -> Callable[[], Any]:
    if not callable(function):
        raise DefinitionError(f"{decorator} takes no arguments", f"write {decorator} above a function")
    if call_schema(function).annotations:
        name = getattr(function, "__name__", "?")
        raise DefinitionError(f"{decorator}: {name} takes arguments", f"write def {name}(): ...")
    return function
