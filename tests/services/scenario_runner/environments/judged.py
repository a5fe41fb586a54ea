"""Scenarios whose grade asks a model."""

from collections.abc import AsyncGenerator
from typing import Any

from upcycle import Environment, Rubric
from upcycle.errors import InfrastructureError
from upcycle.graders import LLMJudgeGrader

env = Environment("judged")


@env.scenario("essay")
async def essay(model: str = "", times: int = 1) -> AsyncGenerator[Any, Any]:
    """A good one names the memory and insults no reader."""
    answer = yield "Why?"
    for _ in range(times):
        result = await Rubric([LLMJudgeGrader(["names the memory", ("insults", -1.0)], model=model)]).judged(
            answer
        )
    yield result


@env.scenario("breaks_on_praise")
async def breaks_on_praise() -> AsyncGenerator[Any, Any]:
    """Its code fails after the judge has spoken, where the answer is not empty."""
    answer = yield "Why?"
    score = await LLMJudgeGrader(["names the memory"]).ask(answer)
    yield 1 / (1 - score.value)


@env.scenario("asks_of_nothing")
async def asks_of_nothing() -> AsyncGenerator[Any, Any]:
    """Asks about the empty answer too, and fails on any other one."""
    answer = yield "Why?"
    score = await LLMJudgeGrader(["is short"]).ask(answer or "nothing")
    if answer:
        raise ValueError("an answer")
    yield score.value


@env.scenario("forgiving")
async def forgiving() -> AsyncGenerator[Any, Any]:
    """Its author pays nothing where the judge is away, which is the author's to say."""
    answer = yield "Why?"
    try:
        yield (await LLMJudgeGrader(["names the memory"]).ask(answer)).value
    except InfrastructureError:
        yield 0.25
