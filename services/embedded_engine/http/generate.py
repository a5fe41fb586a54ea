"""POST /inference/v1/generate: tokens in, tokens out, with the weight versions of every token."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from embedded_engine.http.answer_form import answer_form
from embedded_engine.http.bodies import GenerateBody
from embedded_engine.http.errors import json_reply
from embedded_engine.http.replies import (
    adjusted,
    prompt_logprob_entries,
    read_body,
    send_events,
    stop_reason,
    usage,
)
from embedded_engine.http.serving import SamplingWish, Served, Serving
from embedded_engine.sequences import Part, Sequence


async def generate(request: web.Request) -> web.StreamResponse:
    """One prompt of token ids to n completions of token ids."""
    serving: Serving = request.app["serving"]
    body = GenerateBody.model_validate(await read_body(request))
    served = serving.resolve(body.model)
    params = body.sampling_params
    max_tokens = 16 if params.max_tokens is None else params.max_tokens
    wish = SamplingWish(params.logprobs, max_tokens, answer_form(params))
    sequences = await serving.sequences(served, params, body.token_ids, wish)
    request_id = body.request_id or serving.new_id("generate-tokens")
    if body.stream:
        return await send_events(request, _chunks(serving, served, sequences, request_id))
    await serving.run(served, sequences)
    choices = [choice(served, index, Part.whole(sequence)) for index, sequence in enumerate(sequences)]
    return json_reply(
        {
            "request_id": request_id,
            "model": served.name,
            "created": int(time.time()),
            "usage": usage(sequences),
            "prompt_logprobs": prompt_logprob_entries(served, sequences[0]),
            "output_mode": "tokens",
            "choices": choices,
        }
    )


def choice(served: Served, index: int, part: Part) -> dict[str, Any]:
    """One choice, as far as the part goes."""
    sequence, finished = part.sequence, part.finish_reason is not None
    return {
        "index": index,
        "finish_reason": part.finish_reason,
        "stop_reason": stop_reason(served, sequence) if finished else None,
        "token_ids": part.token_ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": sequence.version_spans() if finished else None,
        "logprobs": None if sequence.spec.num_top_logprobs is None else {"content": _content(part)},
        **adjusted(sequence),
    }


def _content(part: Part) -> list[dict[str, Any]]:
    entries = []
    for offset, (token, logprob) in enumerate(zip(part.token_ids, part.logprobs, strict=True)):
        rank = part.sequence.tops[part.start + offset].rank if part.sequence.spec.num_top_logprobs else None
        likeliest = [{"token_id": token, "logprob": logprob, "rank": rank}]
        likeliest += [
            {"token_id": other, "logprob": value, "rank": at}
            for at, (other, value) in enumerate(part.likeliest(offset), start=1)
            if other != token
        ]
        entries.append(
            {
                # How verifiers' client wants ids spelled; vLLM itself sends `token_id`.
                "token": f"token_id:{token}",
                "token_id": token,
                "logprob": logprob,
                "rank": rank,
                "top_logprobs": likeliest,
            }
        )
    return entries


async def _chunks(
    serving: Serving, served: Served, sequences: list[Sequence], request_id: str
) -> AsyncGenerator[object, None]:
    start = {"request_id": request_id, "usage": None, "output_mode": "tokens"}
    async with aclosing(serving.stream(served, sequences)) as parts:
        async for index, part in parts:
            yield {**start, "choices": [choice(served, index, part)]}
