"""Whether a server takes our key and has the model, asked once before any episode is played."""

import difflib
from typing import Final

from upcycle.external.dialects import OpenAIChat
from upcycle.external.naming import ExternalModel, external_model, names_no_model
from upcycle.external.server import ModelServer
from upcycle.playing.errors import PlayRefused

_SHOWN: Final = 5
_KEY_INVALID: Final = "API_KEY_INVALID"
"""Gemini's reason for a wrong key, in a 400."""


async def require_model(model: ExternalModel, server: ModelServer) -> None:
    """Raises PlayRefused for a key or a model that the server refuses, Unavailable where nothing answers. A
    server that does not say which models it has is taken as it is."""
    dialect = model.dialect(model.model)
    status, answer = await server.get(dialect.model_path)
    if status == 401 or (status == 400 and _KEY_INVALID in str(answer)):
        raise PlayRefused(f"{server.url} answered {status}: {server.key_hint}")
    if status == 404 and dialect.model_path.endswith(model.model):
        raise PlayRefused(f"{server.url} has no model {model.model!r}", f"name another: {_named(model)}")
    known = dialect.models_in(answer) if status == 200 else []
    if known and model.model not in known:
        near = difflib.get_close_matches(model.model, known, n=1)
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known[:_SHOWN])}{more}"
        raise PlayRefused(f"{server.url} has no model {model.model!r}", hint)


async def named_agent(name: str) -> str:
    """The name of an agent, with its model where it is `openai:URL` or a URL alone: the only one that the
    server there has. Raises as only_model does."""
    if not names_no_model(name):
        return name
    name = name.removesuffix("#")
    return f"{name}#{await only_model(external_model(f'{name}#?'), name)}"


async def only_model(asking: ExternalModel, name: str) -> str:
    """The only model that the server of an agent has. name: of the agent, without a model. Raises PlayRefused
    where it has more or says none, Unavailable where nothing answers."""
    server = asking.server()
    try:
        status, answer = await server.get(OpenAIChat.model_path)
    finally:
        await server.close()
    if status == 401:
        raise PlayRefused(f"{server.url} answered 401: {server.key_hint}")
    known = OpenAIChat("").models_in(answer) if status == 200 else []
    if len(known) != 1:
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        serves = f"serves {', '.join(known[:_SHOWN])}{more}"
        has = serves if known else f"answered {status} and names no model"
        raise PlayRefused(f"{server.url} {has}", f"name one: {name}#{known[0] if known else 'model'}")
    return known[0]


def _named(model: ExternalModel) -> str:
    return f"{model.name.partition('#')[0]}#MODEL"
