"""An environment whose agent plays against itself: it hides a number below another, and finds hidden
numbers."""

import json
from collections.abc import Generator
from typing import Any

from upcycle import Environment
from upcycle.transcripts import Answer

env = Environment("self_play")


@env.scenario("hide")
def hide(below: int = 9) -> Generator[Any, Any, None]:
    """A proposal is consistent where it names a number below the given one."""
    answer = yield f"Hide a number below {below}."
    yield float(str(answer).isdigit() and int(str(answer)) < below)


@env.scenario("find")
def find(number: int, below: int = 9) -> Generator[Any, Any, None]:
    """Right is the hidden number."""
    answer = yield f"Find a number below {below}, of {len(str(number))} digits."
    yield float(answer == str(number))


@find.proposed_by(hide)
def hidden(proposal: Answer, below: int = 9) -> dict[str, Any]:
    """What was hidden."""
    if proposal == "7":
        raise LookupError("seven is nowhere")
    return {"number": int(proposal), "below": below}


@find.left_over
def wrong(failed: Answer, number: int, below: int = 9) -> dict[str, Any]:
    """What was found in place of the hidden number."""
    return {"number": int(failed), "below": below}


@env.scenario("alone")
def alone() -> Generator[Any, Any, None]:
    """No scenario proposes its tasks."""
    yield json.dumps("?")
    yield 0.0
