"""Asks a model what the judges of a scenario ask: outside the episode, with a key that no episode has."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from upcycle.errors import UpcycleError
from upcycle.external.keys import AGENT_KEY
from upcycle.external.naming import ExternalModel, external_model, with_kind
from upcycle.external.server import PAUSES_S, ModelServer
from upcycle.judge_calls import JudgeQuestion, JudgeReply
from upcycle.playing.errors import PlayRefused
from upcycle.user_settings.layers import variables

JUDGE: Final = "UPCYCLE_JUDGE"
JUDGE_KEY: Final = "UPCYCLE_JUDGE_KEY"
_MAX_TOKENS: Final = 4096
_GATEWAY: Final = "gateway:"


class Judges:
    """The judges of an evaluation in this process; connections are kept from question to question.

    UPCYCLE_JUDGE names the model for graders that name none: `openai:URL#model`, `gateway:slug`, `claude`,
    `openai` or `gemini`. UPCYCLE_JUDGE_KEY is sent to the server of UPCYCLE_JUDGE and to no other: an
    environment's code may name any URL.
    """

    def __init__(
        self, *, environ: Mapping[str, str] | None = None, pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        self._env = variables() if environ is None else environ
        self._pauses_s = pauses_s
        self._models: dict[str, tuple[ExternalModel, ModelServer]] = {}

    async def ask(self, question: JudgeQuestion) -> JudgeReply:
        """One turn without tools. Raises UpcycleError for a judge that is not named, refuses or does not
        answer."""
        model, server = self._model(question.model)
        system = {"role": "system", "content": question.system}
        asked = [system, {"role": "user", "content": question.user}]
        player = model.player(server)
        reply = await player.reply(asked, (), _MAX_TOKENS)
        tokens = player.tokens
        return JudgeReply(reply.said.text, model.name, tokens.prompt, tokens.completion)

    async def close(self) -> None:
        """Close the connections."""
        for _, server in self._models.values():
            await server.close()
        self._models.clear()

    def _model(self, name: str) -> tuple[ExternalModel, ModelServer]:
        if name not in self._models:
            model = self._named(name or self._default())
            self._models[name] = (model, model.server(pauses_s=self._pauses_s))
        return self._models[name]

    def _default(self) -> str:
        named = self._env.get(JUDGE, "").strip()
        if not named:
            raise PlayRefused("a judge is asked, and none is named", f"set {JUDGE}, such as openai:URL#model")
        return named

    def _named(self, name: str) -> ExternalModel:
        if name.startswith(_GATEWAY):
            return _through_gateway(name.removeprefix(_GATEWAY))
        name = with_kind(name)
        key = self._env.get(JUDGE_KEY, "").strip()
        if not name.startswith("openai:"):
            return external_model(name, environ=self._env)  # the user's: LLMJudgeGrader names none
        is_own = _server(name) == _server(self._env.get(JUDGE, ""))
        return external_model(name, environ={AGENT_KEY: key} if is_own else {AGENT_KEY: ""})


def _server(name: str) -> tuple[str, str]:
    parts = urlsplit(name.removeprefix("openai:"))
    return parts.scheme, parts.netloc


def _through_gateway(slug: str) -> ExternalModel:
    from upcycle.external.gateway import gateway_at
    from upcycle.platform import find_addresses

    if not slug:
        raise UpcycleError("a judge names no model of the gateway", "write gateway:slug")
    return gateway_at(find_addresses(), slug)
