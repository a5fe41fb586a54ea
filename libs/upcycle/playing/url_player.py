"""A player behind any OpenAI-compatible URL: `openai:http://host:port/v1#model`.

The key is read from the environment: UPCYCLE_AGENT_KEY for any server, OPENAI_API_KEY for api.openai.com
alone.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from upcycle.errors import Unavailable
from upcycle.harness.chat import ChatReply, Messages
from upcycle.harness.parsing import read_message
from upcycle.playing.errors import PlayerFailed, PlayRefused

if TYPE_CHECKING:
    import httpx2

KEY: Final = "UPCYCLE_AGENT_KEY"
_OPENAI_HOST: Final = "api.openai.com"
_FORM: Final = "write openai:http://127.0.0.1:8000/v1#model"
CONNECT_S: Final = 5.0
REPLY_S: Final = 300.0
_PAUSES_S: Final = (1.0, 3.0)
_BUSY: Final = frozenset({429, 502, 503, 504})
_SHOWN_CHARS: Final = 300


class UrlPlayer:
    """Asks a server for each turn, with the whole conversation."""

    def __init__(
        self, url: str, model: str, *, temperature: float | None, pauses_s: tuple[float, ...]
    ) -> None:
        """pauses_s: before each further try of a server that says it is busy."""
        self.url = url
        self.model = model
        self._temperature = temperature
        self._pauses_s = pauses_s
        self._tokens_field = "max_tokens"
        self._client: httpx2.AsyncClient | None = None

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        """Raises Unavailable where nothing answers, PlayerFailed for what the server refuses."""
        body: dict[str, Any] = {"model": self.model, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if self._temperature is not None:
            body["temperature"] = self._temperature
        answer = await self._post(body, max_tokens)
        try:
            choice = answer["choices"][0]
            message, was_cut = choice["message"], choice.get("finish_reason") == "length"
            num_tokens = int((answer.get("usage") or {}).get("total_tokens") or 0)
            return ChatReply(read_message(message), was_cut, num_tokens)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise PlayerFailed(f"{self.url} sent no chat completion: {str(answer)[:_SHOWN_CHARS]}") from error

    async def _post(self, body: Mapping[str, Any], max_tokens: int) -> Any:
        pauses_s = list(self._pauses_s)
        while True:
            response = await self._send({**body, self._tokens_field: max_tokens})
            status, text = response.status_code, response.text
            if status == 400 and self._tokens_field == "max_tokens" and "max_completion_tokens" in text:
                self._tokens_field = "max_completion_tokens"
            elif status in _BUSY and pauses_s:
                await asyncio.sleep(pauses_s.pop(0))
            elif status != 200:
                raise PlayerFailed(f"{self.url} answered {status}: {text[:_SHOWN_CHARS]}", self._hint(status))
            else:
                try:
                    return response.json()
                except ValueError as error:
                    raise PlayerFailed(f"{self.url} sent no JSON: {text[:_SHOWN_CHARS]!r}") from error

    async def _send(self, body: Mapping[str, Any]) -> "httpx2.Response":
        import httpx2

        if self._client is None:
            timeout = httpx2.Timeout(REPLY_S, connect=CONNECT_S)
            self._client = httpx2.AsyncClient(timeout=timeout, headers=_key_header(self.url))
        try:
            return await self._client.post(f"{self.url}/chat/completions", json=body)
        except httpx2.TimeoutException as error:
            raise Unavailable(f"{self.url} did not answer in time ({type(error).__name__})") from error
        except httpx2.TransportError as error:
            raise Unavailable(
                f"{self.url} does not answer: {error}", hint="is the server running?"
            ) from error

    def _hint(self, status: int) -> str:
        if status in (401, 403):
            return f"set its key in {key_variable(self.url)}"
        return f"does it serve model {self.model!r} at {self.url}/chat/completions?" if status == 404 else ""


def url_player(agent: str, *, temperature: float | None = None) -> UrlPlayer:
    """From `openai:URL#model`. Raises PlayRefused."""
    kind, colon, rest = agent.partition(":")
    if not colon or kind != "openai":
        raise PlayRefused(f"agent {agent!r} is of no kind that plays here", _FORM)
    url, _, model = rest.partition("#")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PlayRefused(f"agent {agent!r} names no http URL", _FORM)
    if not model:
        raise PlayRefused(f"agent {agent!r} names no model", _FORM)
    if parts.username or parts.password:
        raise PlayRefused("an agent's URL holds a password", f"put the key into {KEY}")
    return UrlPlayer(url.rstrip("/"), model, temperature=temperature, pauses_s=_PAUSES_S)


def key_variable(url: str) -> str:
    """The variable that holds the key of the server at a URL."""
    return "OPENAI_API_KEY" if urlsplit(url).hostname == _OPENAI_HOST and KEY not in os.environ else KEY


def _key_header(url: str) -> dict[str, str]:
    key = os.environ.get(key_variable(url), "").strip()
    return {"Authorization": f"Bearer {key}"} if key else {}
