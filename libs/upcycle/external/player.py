"""A model behind a server as the player of one episode."""

from collections.abc import Mapping
from typing import Any

from upcycle.external.dialects import Answered, Dialect, NoTurn, Tokens
from upcycle.external.server import ModelServer
from upcycle.harness.chat import ChatReply, Messages
from upcycle.playing.errors import PlayerFailed
from upcycle.results import Run


class ModelPlayer:
    """Asks its server for each turn, with the whole conversation. tokens: what all its turns took."""

    def __init__(self, server: ModelServer, dialect: Dialect, sampling: Mapping[str, float]) -> None:
        self.tokens = Tokens()
        self._server = server
        self._dialect = dialect
        self._sampling = dict(sampling)
        self._kept = dict[int, list[Any]]()

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        """Raises Unavailable where nothing answers, AgentRefused and PlayerFailed for what is refused."""
        answered = await self._ask(messages, tools, max_tokens)
        self.tokens += answered.tokens
        if answered.content:
            self._kept[len(messages)] = answered.content
        return answered.reply

    async def ended(self, run: Run) -> None:
        """Its episode is over, with this result."""

    async def _ask(self, messages: Messages, tools: Messages, max_tokens: int) -> Answered:
        dialect, server = self._dialect, self._server
        body = dialect.body(messages, tools, max_tokens, self._sampling, self._kept)
        while True:
            status, answer = await server.post(dialect.path, body)
            if status == 200:
                try:
                    return dialect.read(answer)
                except NoTurn as error:
                    raise PlayerFailed(f"{server.url} sent {server.shown(str(error))}") from error
            dialect.learn(answer)
            refused, body = body, dialect.body(messages, tools, max_tokens, self._sampling, self._kept)
            if body == refused:
                raise PlayerFailed(f"{server.url} answered {status}: {server.shown(answer)}")
