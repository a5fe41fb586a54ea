"""How a grader asks a model without a key and without a connection: the question leaves the episode through
its control channel, and who drives the environment asks it."""

import asyncio
import itertools
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from upcycle.errors import DefinitionError, InfrastructureError

MAX_CALLS: Final = 64
"""Of one grade."""
MAX_QUESTION_CHARS: Final = 400_000


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """model: as `LLMJudgeGrader` names it; empty: the one that is set where the question is asked."""

    model: str
    system: str
    user: str

    def to_json(self) -> dict[str, str]:
        """All fields."""
        return {"model": self.model, "system": self.system, "user": self.user}


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """What a model said. model: which it was."""

    text: str
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {
            "text": self.text,
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


class JudgeCalls:
    """The questions of one grade, in the process of the environment."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._asked: asyncio.Queue[tuple[int, JudgeQuestion]] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[JudgeReply]] = {}

    async def ask(self, question: JudgeQuestion) -> JudgeReply:
        """Wait for the reply. Raises InfrastructureError where there is none, DefinitionError for too
        much."""
        number, size = next(self._ids), len(question.system) + len(question.user)
        if number > MAX_CALLS or size > MAX_QUESTION_CHARS:
            raise DefinitionError(
                f"a grade asks question {number} of {size} characters",
                f"limits are {MAX_CALLS} questions of {MAX_QUESTION_CHARS} characters",
            )
        reply: asyncio.Future[JudgeReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        self._asked.put_nowait((number, question))
        try:
            return await reply
        finally:
            self._waiting.pop(number, None)

    async def next(self) -> dict[str, Any]:
        """The next question, with its id."""
        number, question = await self._asked.get()
        return {"id": number, **question.to_json()}

    def answer(self, params: Mapping[str, Any]) -> bool:
        """Hand over a reply, or `{"error"}`, which is for good where `refused` says so; false where its
        question does not wait."""
        waiting = self._waiting.get(params.get("id", 0))
        if waiting is None or waiting.done():
            return False
        error = str(params.get("error") or "")
        if error and params.get("refused") is True:
            waiting.set_exception(DefinitionError(f"a judge is not asked: {error}"))
        elif error:
            waiting.set_exception(InfrastructureError(f"the judge did not answer: {error}"))
        else:
            counts = (int(params.get(f"{kind}_tokens") or 0) for kind in ("prompt", "completion"))
            waiting.set_result(JudgeReply(str(params.get("text")), str(params.get("model") or ""), *counts))
        return True


JUDGE_CALLS: Final[ContextVar[JudgeCalls | None]] = ContextVar("judge_calls", default=None)
"""Of the grade that runs; None where who drives the environment asks no judge."""
