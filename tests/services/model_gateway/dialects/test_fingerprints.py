"""`system_fingerprint` of an answer names the checkpoint that made it, in each form of the two dialects that
have the field."""

from typing import Any

import orjson
import pytest
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.dialects.conftest import MODEL

from identities.entities import checkpoint_id
from model_gateway.domain.replies import with_fingerprint

ASK: Any = [{"role": "user", "content": 'say "system_fingerprint":null'}]


async def answer(gateway: Gateway, *, chat: bool, streamed: bool, **asked: Any) -> list[Any]:
    """The answer, or its chunks."""
    client = gateway.client()
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "stream": streamed, **asked}
    if chat:
        said: Any = await client.chat.completions.create(messages=ASK, **given)
    else:
        said = await client.completions.create(prompt="why?", **given)
    return [chunk async for chunk in said] if streamed else [said]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    "asked",
    [{}, {"model": f"{MODEL}@v0"}, {"extra_headers": {"X-Session-ID": "fingerprints"}}],
    ids=["head", "pinned", "recorded"],
)
async def test_every_answer_names_its_checkpoint(
    speaking: Gateway, chat: bool, streamed: bool, asked: dict[str, Any]
) -> None:
    said = await answer(speaking, chat=chat, streamed=streamed, **asked)
    assert said
    assert {one.system_fingerprint for one in said} == {checkpoint_id(MODEL, 0)}


def test_a_text_that_looks_like_the_field_stays() -> None:
    text = '"system_fingerprint":null'
    reply = {"choices": [{"text": text}], "system_fingerprint": None}
    named = orjson.loads(with_fingerprint(orjson.dumps(reply), "ckpt-m-v00000001"))
    assert named == {"choices": [{"text": text}], "system_fingerprint": "ckpt-m-v00000001"}
