"""An environment whose scenario makes new tasks of those that a run failed or solved, and four that fail."""

import time
from collections.abc import Generator
from typing import Any

from upcycle import Environment
from upcycle.generator import Parent

env = Environment("generating")


@env.scenario("count")
def count(upto: int = 9, by: int = 1) -> Generator[Any, Any, None]:
    """Count."""
    answer = yield f"Count to {upto} by {by}."
    yield float(answer == " ".join(map(str, range(by, upto + 1, by))))


@count.generator
async def other(seed: int, parent: Parent) -> dict[str, Any]:
    """Shorter after failure, longer after success; the seed says by how much."""
    step = 1 + seed % 3
    upto = int(parent.arguments.get("upto", 9))
    return {"upto": upto + step if parent.solved else max(1, upto - step)}


@env.scenario("raises")
def raises() -> Generator[Any, Any, None]:
    """Its generator raises."""
    yield "?"
    yield 0.0


@raises.generator
def broken(seed: int, parent: Parent) -> dict[str, Any]:
    raise LookupError(f"no task for {seed}")


@env.scenario("misfit")
def misfit(word: str) -> Generator[Any, Any, None]:
    """Its generator makes what it does not take."""
    yield word
    yield 0.0


@misfit.generator
def unfit(seed: int, parent: Parent) -> Any:
    made: list[Any] = [{"word": seed}, {"letter": "a"}, {"word": "x" * 70_000}, "a", {"word": "\ud800"}]
    return made[seed]


@env.scenario("sleeps")
def sleeps() -> Generator[Any, Any, None]:
    """Its generator hangs."""
    yield "?"
    yield 0.0


@sleeps.generator
def hangs(seed: int, parent: Parent) -> dict[str, Any]:
    time.sleep(3600)
    return {}


@env.scenario("bare")
def bare() -> Generator[Any, Any, None]:
    """Without a generator."""
    yield "?"
    yield 0.0
