"""Where the questions to judges of one grade wait for the grader that asks them.

The code that writes the questions is an environment's, and what it costs to answer them is the operator's: a
grade asks so many questions of so many characters and no more.
"""

import asyncio
from typing import Any

from episodes import EpisodeFailure
from scenario_runner.domain.environments import (
    EnvironmentLost,
    EpisodeFault,
    JudgeAnswer,
    JudgeAsked,
    RunnerError,
)
from upcycle.errors import InfrastructureError, JudgeRefused
from upcycle.judge_calls import MAX_CALLS, MAX_QUESTION_CHARS, JudgeQuestion, JudgeReply


class JudgeQuestions:
    """One question at a time; the first answer to it counts."""

    def __init__(self) -> None:
        self.refusal = ""
        """Of a judge that is not asked, now or later: it fails the grade whatever the answer is."""
        self._num_asked = 0
        self._open: JudgeAsked | None = None
        self._reply: asyncio.Future[JudgeReply] | None = None
        self._is_open = asyncio.Event()
        self._closed: RunnerError | None = None

    @property
    def question(self) -> JudgeAsked | None:
        """The one that waits."""
        return self._open

    async def ask(self, question: JudgeQuestion) -> JudgeReply:
        """Wait for the answer.

        Raises InfrastructureError and JudgeRefused for a judge that gave none, EpisodeFault for too much, and
        EnvironmentLost where the lease ends before.
        """
        self._num_asked += 1
        size = len(question.model) + len(question.system) + len(question.user)
        if self._num_asked > MAX_CALLS or size > MAX_QUESTION_CHARS:
            raise EpisodeFault(
                EpisodeFailure.SCENARIO_ERROR,
                f"the grade asks judges question {self._num_asked} of {size} characters, limits are "
                f"{MAX_CALLS} questions of {MAX_QUESTION_CHARS} characters",
            )
        if self._closed is not None:
            raise self._closed
        reply: asyncio.Future[JudgeReply] = asyncio.get_running_loop().create_future()
        self._open, self._reply = JudgeAsked(f"question-{self._num_asked}", question), reply
        self._is_open.set()
        try:
            return await reply
        finally:
            self._open = self._reply = None
            self._is_open.clear()

    def answer(self, given: JudgeAnswer) -> None:
        """Hand over an answer. One to a question that does not wait is left: it was answered already."""
        reply = self._reply
        if self._open is None or reply is None or self._open.question_id != given.question_id:
            return
        if reply.done():  # the environment ended, and its grade has yet to learn of it
            return
        self._open = self._reply = None
        self._is_open.clear()
        if given.refusal:
            self.refusal = given.refusal
            reply.set_exception(JudgeRefused(given.refusal))
        elif given.failure:
            reply.set_exception(InfrastructureError(given.failure))
        else:
            reply.set_result(given.reply)

    async def asked(self, grading: "asyncio.Future[Any]") -> JudgeAsked | None:
        """The question that waits, once there is one; None once the grade is done."""
        while not grading.done():
            if self._open is not None:
                return self._open
            opened = asyncio.ensure_future(self._is_open.wait())
            try:
                await asyncio.wait({grading, opened}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
        return None

    def close(self) -> None:
        """The environment has ended: a grade that waits for a judge is missing."""
        self._closed = EnvironmentLost(
            "the lease of the environment ended while its grade waited for a judge"
        )
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(self._closed)
