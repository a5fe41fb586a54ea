"""An environment of which one scenario guides after a failed attempt, one says nothing, and one has none."""

from collections.abc import AsyncGenerator, Generator
from typing import Any

from upcycle import Environment
from upcycle.guidance import Guidance
from upcycle.transcripts import Answer

env = Environment("guided")


@env.tool()
def look(place: str) -> str:
    """Look somewhere."""
    return "nothing here"


@env.scenario("find")
async def find(place: str) -> AsyncGenerator[Any, Any]:
    """Find it."""
    answer = yield "Where is it?"
    yield float(answer == place)


@find.guidance
async def hint(failed: Answer, place: str) -> str:
    looked = ", ".join(call.arguments["place"] for call in failed.trajectory.tool_calls)
    return f"You looked in {looked} and said {str(failed)!r}. It begins with {place[0]!r}."


@env.scenario("told")
def both_kinds(place: str) -> Generator[Any, Any, None]:
    """Guided by a plan and a hint, each as what it is."""
    answer = yield "Where is it?"
    yield float(answer == place)


@both_kinds.guidance
def plan(failed: Answer, place: str) -> Guidance:
    return Guidance(plan="Look before you answer.", hint=f"It begins with {place[0]!r}.")


@env.scenario("mute")
def mute() -> Generator[Any, Any, None]:
    """Its guidance is no text."""
    yield "?"
    yield 0.0


@mute.guidance
def silence(failed: Answer) -> str:
    return " "


@env.scenario("bare")
def bare() -> Generator[Any, Any, None]:
    """Without guidance."""
    yield "?"
    yield 0.0
