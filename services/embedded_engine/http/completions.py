"""POST /v1/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from aiohttp import web

from embedded_engine.errors import BadRequest
from embedded_engine.http.answer_form import answer_form
from embedded_engine.http.bodies import CompletionBody
from embedded_engine.http.echo import TokenList, echoed_text
from embedded_engine.http.errors import json_reply
from embedded_engine.http.replies import (
    adjusted,
    beside,
    final_text,
    head,
    logprob_columns,
    prompt_logprob_entries,
    read_body,
    send_events,
    stop_reason,
    token_label,
    usage,
)
from embedded_engine.http.serving import SamplingWish, Served, Serving
from embedded_engine.http.text import GrowingText
from embedded_engine.sequences import LENGTH, Part, Sequence

_MAX_SEQUENCES: Final = 1024


async def completions(request: web.Request) -> web.StreamResponse:
    """One or several prompts, each a string or token ids, to n completions each."""
    serving: Serving = request.app["serving"]
    body = CompletionBody.model_validate(await read_body(request))
    served = serving.resolve(body.model)
    if body.echo and body.prompt_logprobs is None:
        body.prompt_logprobs = body.logprobs
    # vLLM, too: only the prompt comes back, with its log-probabilities if they are wanted.
    only_prompt = bool(body.echo) and body.max_tokens == 0
    wish = SamplingWish(body.logprobs, 1 if only_prompt else _max_tokens(body), answer_form(body))
    sequences: list[Sequence] = []
    for prompt in await beside(request, _prompts, body, served):
        sequences += await serving.sequences(served, body, prompt, wish)
    if body.stream and not only_prompt:
        return await send_events(request, _chunks(serving, body, served, sequences))
    await serving.run(served, sequences)
    if only_prompt:
        for sequence in sequences:
            sequence.forget_sampled(LENGTH)
    reply = _reply(serving, body, served, sequences)
    if body.stream:
        return await send_events(request, _as_chunk(body, reply))
    return json_reply({**reply, "service_tier": None, "system_fingerprint": None})


def _reply(
    serving: Serving, body: CompletionBody, served: Served, sequences: list[Sequence]
) -> dict[str, Any]:
    return {
        **head(serving, served, "cmpl", "text_completion"),
        "choices": [_choice(body, served, i, sequence) for i, sequence in enumerate(sequences)],
        "usage": usage(sequences),
    }


async def _as_chunk(body: CompletionBody, reply: dict[str, Any]) -> AsyncGenerator[object, None]:
    """A whole reply as a stream."""
    counts = reply.pop("usage")
    yield reply
    if body.stream_options is not None and body.stream_options.include_usage:
        yield {**reply, "choices": [], "usage": counts}


def _max_tokens(body: CompletionBody) -> int:
    return 16 if body.max_tokens is None else body.max_tokens


def _prompts(body: CompletionBody, served: Served) -> list[list[int]]:
    prompt = body.prompt
    if prompt is None or prompt == "":
        raise BadRequest(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    if isinstance(prompt, str):
        return [served.text.encode(prompt)]
    if not prompt:
        raise BadRequest("You must pass at least one prompt")
    if isinstance(prompt[0], int):
        return [[int(token) for token in prompt if isinstance(token, int)]]
    if len(prompt) * body.n > _MAX_SEQUENCES:
        raise BadRequest(
            f"{len(prompt)} prompts with n={body.n} are {len(prompt) * body.n} sequences, at most "
            f"{_MAX_SEQUENCES} are sampled for one request; send several requests",
            param="prompt",
        )
    return [
        served.text.encode(one) if isinstance(one, str) else list(one)
        for one in prompt
        if not isinstance(one, int)
    ]


def _choice(body: CompletionBody, served: Served, index: int, sequence: Sequence) -> dict[str, Any]:
    text = final_text(
        served, sequence, skip_special=body.skip_special_tokens, include_stop=body.include_stop_str_in_output
    )
    return {
        "index": index,
        "text": echoed_text(body, served, sequence) + text,
        "logprobs": _logprobs(body, served, Part.whole(sequence)),
        "finish_reason": sequence.finish_reason,
        "stop_reason": stop_reason(served, sequence),
        "token_ids": sequence.sampled if body.return_token_ids else None,
        "prompt_logprobs": prompt_logprob_entries(served, sequence),
        "prompt_token_ids": sequence.prompt if body.return_token_ids else None,
        "weight_versions": sequence.version_spans(),
        **adjusted(sequence),
    }


def _logprobs(body: CompletionBody, served: Served, part: Part) -> dict[str, Any] | None:
    if body.logprobs is None:
        return None
    as_id = bool(body.return_tokens_as_token_ids)
    if body.logprobs_as is not None:
        return logprob_columns(served, part, as_id=as_id)
    listed = TokenList(lambda token: token_label(served, token, as_id=as_id))
    if body.echo and part.start == 0:
        listed.add_prompt(part.sequence)
    else:
        listed.skip((part.sequence.prompt if body.echo else []) + part.so_far[: part.start])
    for offset, (token, value) in enumerate(zip(part.token_ids, part.logprobs, strict=True)):
        listed.add(token, value, part.likeliest(offset))
    return listed.as_dict()


async def _chunks(
    serving: Serving, body: CompletionBody, served: Served, sequences: list[Sequence]
) -> AsyncGenerator[object, None]:
    start = {**head(serving, served, "cmpl", "text_completion"), "system_fingerprint": None}
    growing = [GrowingText(served.text, skip_special=body.skip_special_tokens) for _ in sequences]
    async with aclosing(serving.stream(served, sequences)) as parts:
        async for index, part in parts:
            yield {**start, "choices": [_chunk(body, served, index, part, growing[index])]}
    if body.stream_options is not None and body.stream_options.include_usage:
        yield {**start, "choices": [], "usage": usage(sequences)}


def _chunk(
    body: CompletionBody, served: Served, index: int, part: Part, growing: GrowingText
) -> dict[str, Any]:
    sequence, final = part.sequence, part.finish_reason is not None
    visible = part.so_far[:-1] if final and isinstance(sequence.stop_reason, int) else part.so_far
    before = echoed_text(body, served, sequence) if part.start == 0 else ""
    return {
        "index": index,
        "text": before + growing.delta(visible, final=final),
        "logprobs": _logprobs(body, served, part),
        "finish_reason": part.finish_reason,
        "stop_reason": stop_reason(served, sequence) if final else None,
        "prompt_token_ids": sequence.prompt if body.return_token_ids and part.start == 0 else None,
        "token_ids": part.token_ids if body.return_token_ids else None,
        "weight_versions": sequence.version_spans() if final else None,
        **(adjusted(sequence) if final else {}),
    }
