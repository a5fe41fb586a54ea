"""What a request says of its prompt, and what an answer says of its model, over a real engine."""

from typing import Any

import openai
import pytest
from openai.types import Completion
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.dialects.conftest import MODEL

ASK: Any = [{"role": "user", "content": "Why is checkout down?"}]
IMAGE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}


async def test_a_prompt_alone_comes_back_with_its_scores(speaking: Gateway) -> None:
    scored: Completion = await speaking.client().completions.create(
        model=MODEL, prompt=[5, 6, 7], echo=True, logprobs=1, max_tokens=0
    )
    (choice,) = scored.choices
    assert choice.logprobs is not None
    values = choice.logprobs.token_logprobs
    assert values is not None
    assert len(values) == 3
    assert values[0] is None
    assert all(one is not None and one < 0 for one in values[1:])
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([5, -6], "prompt[1] is -6, expected a token id"),
        ([[5], ["a"]], "prompt[1][0] is 'a', expected a token id"),
        (["a", 5], "prompt[1] is 5, expected a text or token ids"),
        ([True], "prompt[0] is True, expected a token id"),
    ],
)
async def test_what_is_no_prompt_is_named_by_its_place(speaking: Gateway, prompt: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await speaking.client().completions.create(model=MODEL, prompt=prompt, max_tokens=1)
    assert refused.value.param == "prompt"
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21, expected an integer"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, expected an integer from 1 to"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
            "tools[0].type",
            "tools[0].type is 'custom': this server has no such tools; use function",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
            None,
            "messages[0].content[1] is of type 'image_url'; text alone is read here",
        ),
    ],
)
async def test_what_a_chat_cannot_have_is_named(
    speaking: Gateway, more: dict[str, Any], param: str | None, said: str
) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "max_tokens": 1, **more}
    with pytest.raises(openai.BadRequestError) as refused:
        await speaking.client().chat.completions.create(**asked)
    assert refused.value.param == param
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("name", "answered"), [(MODEL, MODEL), (f"{MODEL}@head", MODEL), (f"{MODEL}@v0", f"{MODEL}@v0")]
)
async def test_an_answer_names_the_version_that_was_asked_for(
    speaking: Gateway, name: str, answered: str
) -> None:
    create = speaking.client().chat.completions.create
    whole = await create(model=name, messages=ASK, max_tokens=3)
    assert whole.model == answered
    stream = await create(model=name, messages=ASK, max_tokens=3, stream=True)
    assert {chunk.model async for chunk in stream} == {answered}
