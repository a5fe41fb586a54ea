"""The models that judge answers, over OpenAI's API. Which ones there are, and their keys, the operator says;
an episode names one of them.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp

from reward_grader.adapters.judge_places import FreePlaces, JudgePlaces
from reward_grader.domain import Judge, JudgeLimits
from service_kit.deadlines import DeadlineExceeded, deadline
from upcycle.errors import InfrastructureError, JudgeRefused, Unavailable
from upcycle.external.dialects import NoTurn, OpenAIChat
from upcycle.external.keys import hidden, hidden_in_answer
from upcycle.external.server import BUSY, retry_after_s
from upcycle.judge_calls import JudgeQuestion, JudgeReply

_CONNECT_S: Final = 5.0
PAUSES_S: Final = (1.0, 3.0, 9.0)
"""Before each further try of a judge that is busy or sends no completion."""
RETRY_AFTER_S: Final = 5.0
MAX_REPLY_BYTES: Final = 1 << 20
_SHOWN_CHARS: Final = 200
_MOST_TOKENS: Final = 1 << 53
_REFUSED_CONTENT: Final = frozenset({400, 413, 422})


class _Unreadable(Exception):
    """The server sent 200 and no chat completion."""


class JudgeServers:
    """Asks judges by their names, each a few questions at once; connections are kept from question to
    question."""

    def __init__(
        self,
        judges: Sequence[Judge],
        limits: JudgeLimits,
        *,
        pauses_s: tuple[float, ...] = PAUSES_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._pauses_s = pauses_s
        self._session: aiohttp.ClientSession | None = None
        free = FreePlaces(limits.together)
        self._asked = {
            judge.name: _AskedJudge(judge, JudgePlaces(judge.shown, limits.at_once, free, now=now))
            for judge in judges
        }
        if (default := self._asked.get("")) is not None:  # an episode may name it in full, too
            self._asked.setdefault(f"openai:{default.judge.url}#{default.judge.model}", default)

    def __bool__(self) -> bool:
        return bool(self._asked)

    async def ask(self, question: JudgeQuestion) -> JudgeReply:
        """One turn without tools.

        Raises JudgeRefused for a name that is none of ours, Unavailable for a judge that does not answer now,
        its subclass NotAsked where the question was not sent, and InfrastructureError for a judge that
        refuses this question, or answers it with no completion.
        """
        asked = self._asked.get(question.model)
        if asked is None:
            raise JudgeRefused(_unknown(question.model, sorted(self._asked)))
        with asked.places.taken():
            try:
                async with deadline(f"judge {asked.judge.shown}", self.limits.answer_s):
                    return await self._answered(asked, question)
            except DeadlineExceeded as error:
                raise Unavailable(f"judge {asked.judge.shown}: {error}", RETRY_AFTER_S) from error

    async def stop(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _answered(self, asked: "_AskedJudge", question: JudgeQuestion) -> JudgeReply:
        pauses_s, shown = list(self._pauses_s), asked.judge.shown
        while True:
            body = asked.body(question, self.limits.max_tokens)
            status, text, wait_s = await self._post(asked.judge, body)
            said = " ".join(hidden(text, asked.judge.key).split())[:_SHOWN_CHARS]
            if status == 200:
                try:
                    return asked.read(text)
                except _Unreadable as error:
                    if not pauses_s:
                        raise InfrastructureError(f"judge {shown} sent no completion: {said!r}") from error
            elif status in _REFUSED_CONTENT:
                if not asked.learns(text, body, question, self.limits.max_tokens):
                    raise InfrastructureError(f"judge {shown} refused the question ({status}): {said}")
                continue
            elif status not in BUSY or not pauses_s:
                raise Unavailable(f"judge {shown}, which answers {status}: {said}", RETRY_AFTER_S)
            pause_s = pauses_s.pop(0)
            await asyncio.sleep(pause_s if wait_s is None else wait_s)

    async def _post(self, judge: Judge, body: dict[str, Any]) -> tuple[int, str, float | None]:
        """Status, text, and the pause that it asks for. Raises Unavailable."""
        headers = {"accept-encoding": "identity"}
        headers |= {"Authorization": f"Bearer {judge.key}"} if judge.key else {}
        url = f"{judge.url}{OpenAIChat.path}"
        try:
            async with self._open().post(url, json=body, headers=headers, allow_redirects=False) as response:
                data = bytearray()
                async for chunk in response.content.iter_chunked(1 << 16):
                    data += chunk
                    if len(data) > MAX_REPLY_BYTES:
                        raise InfrastructureError(
                            f"judge {judge.shown} sent more than {MAX_REPLY_BYTES} bytes"
                        )
                wait_s = retry_after_s(response.headers.get("retry-after", ""), time.time())
                return response.status, data.decode("utf-8", "replace"), wait_s
        except (aiohttp.ClientError, OSError) as error:
            said = hidden(str(error), judge.key)
            raise Unavailable(f"judge {judge.shown}, which does not answer: {said}", RETRY_AFTER_S) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self.limits.answer_s, sock_connect=_CONNECT_S)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        return self._session


class _AskedJudge:
    """A judge, and what its server taught of how it wants to be asked."""

    def __init__(self, judge: Judge, places: JudgePlaces) -> None:
        self.judge = judge
        self.places = places
        self._dialect = OpenAIChat(judge.model)
        self._sampling: dict[str, float] = {"temperature": 0.0}

    def body(self, question: JudgeQuestion, max_tokens: int) -> dict[str, Any]:
        """The request."""
        system = {"role": "system", "content": question.system}
        messages = [system, {"role": "user", "content": question.user}]
        return self._dialect.body(messages, (), max_tokens, self._sampling, {})

    def learns(self, refusal: str, body: dict[str, Any], question: JudgeQuestion, max_tokens: int) -> bool:
        """Whether the question would be written in another form after this refusal: some models know no
        temperature but their own, and some only max_completion_tokens."""
        self._dialect.learn(refusal)
        if "temperature" in refusal:
            self._sampling = {}
        return self.body(question, max_tokens) != body

    def read(self, text: str) -> JudgeReply:
        """Raises _Unreadable."""
        try:
            answered = self._dialect.read(json.loads(hidden_in_answer(text, self.judge.key)))
        except (ValueError, RecursionError, NoTurn) as error:
            raise _Unreadable(str(error)) from error
        said = answered.reply.said.text.encode("utf-8", "replace").decode()
        counts = (min(_MOST_TOKENS, one) for one in (answered.tokens.prompt, answered.tokens.completion))
        return JudgeReply(said, self.judge.shown, *counts)


def _unknown(name: str, known: Sequence[str]) -> str:
    listed = ", ".join(repr(one) for one in known if one) or "none by name"
    if not name:
        return (
            "the scenario's judge names no model, and no default one is set; set REWARD_GRADER_JUDGE_URL and "
            f"REWARD_GRADER_JUDGE_MODEL, or name one of REWARD_GRADER_JUDGES: {listed}"
        )
    return (
        f"the scenario's judge {name[:200]!r} is none that this platform asks; add it to "
        f"REWARD_GRADER_JUDGES, or name one of them: {listed}"
    )
