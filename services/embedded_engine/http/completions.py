"""POST /v1/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from embedded_engine.errors import BadRequest
from embedded_engine.http.bodies import CompletionBody
from embedded_engine.http.errors import json_reply
from embedded_engine.http.replies import (
    final_text,
    head,
    prompt_logprob_entries,
    read_body,
    send_events,
    stop_reason,
    token_label,
    usage,
)
from embedded_engine.http.serving import Served, Serving
from embedded_engine.http.text import GrowingText
from embedded_engine.sequences import Part, Sequence


async def completions(request: web.Request) -> web.StreamResponse:
    """One or several prompts, each a string or token ids, to n completions each."""
    serving: Serving = request.app["serving"]
    body = CompletionBody.model_validate(await read_body(request))
    served = serving.resolve(body.model)
    sequences: list[Sequence] = []
    for prompt in _prompts(body, served):
        serving.check_prompt(prompt)
        wanted = 16 if body.max_tokens is None else body.max_tokens
        spec = serving.spec(served, body, len(prompt), logprobs=body.logprobs, max_tokens=wanted)
        sequences += serving.sequences(prompt, spec, body.n)
    if body.stream:
        return await send_events(request, _chunks(serving, body, served, sequences))
    await serving.run(served, sequences)
    return json_reply(
        {
            **head(serving, served, "cmpl", "text_completion"),
            "choices": [_choice(body, served, i, sequence) for i, sequence in enumerate(sequences)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage(sequences),
        }
    )


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
        "text": text,
        "logprobs": _logprobs(body, served, Part.whole(sequence)),
        "finish_reason": sequence.finish_reason,
        "stop_reason": stop_reason(served, sequence),
        "token_ids": sequence.sampled if body.return_token_ids else None,
        "prompt_logprobs": prompt_logprob_entries(served, sequence),
        "prompt_token_ids": sequence.prompt if body.return_token_ids else None,
        "weight_versions": sequence.version_spans(),
    }


def _logprobs(body: CompletionBody, served: Served, part: Part) -> dict[str, Any] | None:
    if body.logprobs is None:
        return None
    as_id = bool(body.return_tokens_as_token_ids)
    names = [token_label(served, token, as_id=as_id) for token in part.token_ids]
    position = sum(len(token_label(served, token, as_id=as_id)) for token in part.so_far[: part.start])
    offsets, tops = [], []
    for offset, (name, value) in enumerate(zip(names, part.logprobs, strict=True)):
        offsets.append(position)
        position += len(name)
        top = {name: value}
        for token, logprob in part.likeliest(offset):
            top.setdefault(token_label(served, token, as_id=as_id), logprob)
        tops.append(top)
    return {"text_offset": offsets, "token_logprobs": part.logprobs, "tokens": names, "top_logprobs": tops}


async def _chunks(
    serving: Serving, body: CompletionBody, served: Served, sequences: list[Sequence]
) -> AsyncGenerator[object, None]:
    start = head(serving, served, "cmpl", "text_completion")
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
    return {
        "index": index,
        "text": growing.delta(visible, final=final),
        "logprobs": _logprobs(body, served, part),
        "finish_reason": part.finish_reason,
        "stop_reason": stop_reason(served, sequence) if final else None,
        "prompt_token_ids": sequence.prompt if body.return_token_ids and part.start == 0 else None,
        "token_ids": part.token_ids if body.return_token_ids else None,
        "weight_versions": sequence.version_spans() if final else None,
    }
