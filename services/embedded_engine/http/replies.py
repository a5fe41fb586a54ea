"""Pieces that several replies have in common."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, ParamSpec, TypeVar

import orjson
from aiohttp import web

from embedded_engine.errors import BadRequest
from embedded_engine.http.errors import error_body
from embedded_engine.http.serving import Served, Serving
from embedded_engine.sequences import Part, Sequence
from service_kit.http_limits import BODY_S

P = ParamSpec("P")
T = TypeVar("T")
_LARGE_BYTES: Final = 64 << 10
"""Of a body: what takes longer to turn into tokens than a step of the engine takes."""


async def beside(request: web.Request, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What the function returns; of a large body in a thread, so that the tokens of others go on."""
    if (request.content_length or 0) <= _LARGE_BYTES:
        return function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)


async def send_events(request: web.Request, chunks: AsyncGenerator[object, None]) -> web.StreamResponse:
    """Answer with one server-sent event per chunk. When the client is gone, the chunks are closed. A refusal
    that comes late is sent as an event, because the status is sent already."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        except BadRequest as error:
            refusal = error_body(400, "BadRequestError", str(error), error.param)
            await response.write(b"data: " + orjson.dumps(refusal) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


def head(serving: Serving, served: Served, prefix: str, kind: str) -> dict[str, Any]:
    """What every reply of OpenAI's two ways begins with."""
    return {"id": serving.new_id(prefix), "object": kind, "created": int(time.time()), "model": served.name}


async def read_body(request: web.Request) -> Any:
    """The request's JSON, without copying it through text. Raises BadRequest."""
    if request.content_type != "application/json":
        raise BadRequest("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")
    try:
        async with asyncio.timeout(request.app.get(BODY_S)):
            return orjson.loads(await request.read())
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="the body did not arrive in time (UPCYCLE_EDGE_BODY_S)") from None
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"1 validation error:\n  JSON decode error: {error}") from error


def usage(sequences: list[Sequence]) -> dict[str, Any]:
    """Token counts of a request; sequences that share a prompt count it once."""
    prompts = {id(sequence.prompt): sequence.num_prompt for sequence in sequences}
    prompt, completion = sum(prompts.values()), sum(sequence.num_sampled for sequence in sequences)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sequences[0].num_cached},
    }


def stop_reason(served: Served, sequence: Sequence) -> int | str | None:
    """As vLLM: the stop string or the requested stop token; None for the model's own end of turn, and for
    what this engine added."""
    reason = sequence.stop_reason
    own = reason in served.text.chat.stop_token_ids or reason in sequence.spec.unsaid_stops
    return None if own else reason


def final_text(served: Served, sequence: Sequence, *, skip_special: bool, include_stop: bool) -> str:
    """The completion as text, the stop token or stop string left out unless wanted."""
    token_ids = sequence.sampled
    if isinstance(sequence.stop_reason, int) and not include_stop:
        token_ids = token_ids[:-1]
    text = served.text.decode(token_ids, skip_special=skip_special)
    if isinstance(sequence.stop_reason, str):
        # It ends in the last token; what looks like it before the least tokens was let through.
        before = served.text.decode(token_ids[:-1], skip_special=skip_special)
        cut = text.find(sequence.stop_reason, max(0, len(before) - len(sequence.stop_reason) + 1))
        if cut >= 0:
            text = text[: cut + (len(sequence.stop_reason) if include_stop else 0)]
    return text


def adjusted(sequence: Sequence) -> dict[str, Any]:
    """Says by which fields the tokens come from another distribution than the policy's own; nothing of the
    others."""
    return {"adjusted_by": list(sequence.spec.adjusted_by)} if sequence.spec.adjusted_by else {}


def token_label(served: Served, token_id: int, *, as_id: bool) -> str:
    """How a token is spelled in logprobs."""
    return f"token_id:{token_id}" if as_id else served.text.token_text(token_id)


def logprob_columns(served: Served, part: Part, *, as_id: bool) -> dict[str, Any]:
    """What `logprobs_as: columns` asks for."""
    tokens = [token_label(served, token, as_id=as_id) for token in part.token_ids]
    return {"tokens": tokens, "token_logprobs": part.logprobs}


def prompt_logprob_entries(served: Served, sequence: Sequence) -> list[dict[str, Any] | None] | None:
    """vLLM's `prompt_logprobs`: per prompt token a map from id to logprob, null for the first."""
    if sequence.spec.num_prompt_logprobs is None:
        return None
    entries: list[dict[str, Any] | None] = [None]
    for top in sequence.prompt_logprobs:
        ranks = [top.rank, *range(1, len(top.token_ids))]
        entries.append(
            {
                str(token): {"logprob": value, "rank": rank, "decoded_token": served.text.token_text(token)}
                for token, value, rank in reversed(list(zip(top.token_ids, top.logprobs, ranks, strict=True)))
            }
        )
    return entries
