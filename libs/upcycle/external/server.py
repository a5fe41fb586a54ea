"""One HTTP server of models: JSON in, JSON out, asked again where it says that it is busy."""

import asyncio
import email.utils
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import Unavailable
from upcycle.external.keys import hidden, hidden_in_answer
from upcycle.playing.errors import AgentRefused, PlayerFailed

if TYPE_CHECKING:
    import httpx2

CONNECT_S: Final = 5.0
REPLY_S: Final = 300.0
PAUSES_S: Final = (1.0, 3.0, 9.0, 20.0)
"""Before each further try, where the server names no time."""
MAX_WAIT_S: Final = 120.0
"""A server that asks for a longer pause is given up."""
OVERLOADED: Final = 529
BUSY: Final = frozenset({408, 429, 500, 502, 503, 504, OVERLOADED})
_REFUSALS: Final = frozenset({401, 403, 404})
_SHOWN_CHARS: Final = 300


class ModelServer:
    """Where requests go. key_hint: what to do about a missing or wrong key; model_hint: about a 404."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] = {},
        key: str = "",
        key_hint: str = "",
        model_hint: str = "",
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        self.url = url.rstrip("/")
        self.key_hint = key_hint
        self._model_hint = model_hint
        self._headers = dict(headers)
        self._key = key
        self._pauses_s = pauses_s
        self._client: httpx2.AsyncClient | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """200 and the JSON of the answer, or 400 and its text as it came. Raises Unavailable where nothing
        answers, AgentRefused for a key, a permission or a model that is refused, PlayerFailed for the
        rest."""
        status, text = await self.answer(path, body)
        if status == 200:
            return 200, self._json(hidden_in_answer(text, self._key))
        if status == 400:
            return 400, text
        refusal = AgentRefused if status in _REFUSALS else PlayerFailed
        raise refusal(f"{self.url} answered {status}: {self.shown(text)}", self._hint(status))

    async def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Status and text, whatever they are, once it is not busy. Raises Unavailable where nothing answers,
        PlayerFailed where it asks for too long a pause."""
        pauses_s = list(self._pauses_s)
        while True:
            response = await self._send("POST", path, body)
            if response.status_code not in BUSY or not pauses_s:
                return response.status_code, response.text
            await asyncio.sleep(self._pause_s(response, pauses_s.pop(0)))

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON, None where it is no JSON; asked once. Raises Unavailable."""
        response = await self._send("GET", path, None)
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, None

    def shown(self, text: str) -> str:
        """One line of what it said, without the key."""
        return " ".join(hidden(text, self._key).split())[:_SHOWN_CHARS]

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> "httpx2.Response":
        import httpx2

        if self._client is None:
            timeout = httpx2.Timeout(REPLY_S, connect=CONNECT_S)
            limits = httpx2.Limits(max_connections=None)
            self._client = httpx2.AsyncClient(timeout=timeout, headers=self._headers, limits=limits)
        try:
            return await self._client.request(method, f"{self.url}{path}", json=body)
        except httpx2.TimeoutException as error:
            raise Unavailable(f"{self.url} did not answer in time ({type(error).__name__})") from error
        except httpx2.TransportError as error:
            said = f"{self.url} does not answer: {hidden(str(error), self._key)}"
            raise Unavailable(said, hint="is the server running?") from error

    def _json(self, text: str) -> Any:
        """Without halves of characters: nothing that is written or sent on can hold one."""
        try:
            answer = json.loads(text)
            if "\\ud" in text.lower():
                answer = json.loads(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise PlayerFailed(f"{self.url} sent no JSON: {self.shown(text)!r}") from error
        return answer

    def _pause_s(self, response: "httpx2.Response", otherwise_s: float) -> float:
        """As the server asks. Raises PlayerFailed where that is too long."""
        asked_s = retry_after_s(response.headers.get("retry-after", ""), time.time())
        if asked_s is None:
            return otherwise_s
        if asked_s > MAX_WAIT_S:
            raise PlayerFailed(
                f"{self.url} answered {response.status_code} and asks for a pause of {asked_s:.0f} s, "
                f"limit {MAX_WAIT_S:.0f} s",
                "its quota is spent: try again later, or with a smaller --max-concurrent",
            )
        return asked_s

    def _hint(self, status: int) -> str:
        if status in (401, 403):
            return self.key_hint
        if status == 429:
            return "lower --max-concurrent, or raise the limit of your account"
        return self._model_hint if status == 404 else ""


def retry_after_s(header: str, now_s: float) -> float | None:
    """Seconds of a Retry-After header, which holds seconds or a date; None where it holds neither."""
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - now_s)
    except (ValueError, TypeError):
        return None
