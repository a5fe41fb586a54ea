"""POST /v1/chat/completions: messages and tools in, a message or tool calls (Hermes form) out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from aiohttp import web

from chat_format import AssistantTurn
from embedded_engine.errors import BadRequest
from embedded_engine.grammars import CLOSE, OPEN
from embedded_engine.http.answer_form import chat_form
from embedded_engine.http.bodies import ChatBody
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
from embedded_engine.http.tool_choice import tool_rule
from embedded_engine.sequences import Part, Sequence


async def chat(request: web.Request) -> web.StreamResponse:
    """One conversation to n answers."""
    serving: Serving = request.app["serving"]
    body = ChatBody.model_validate(await read_body(request))
    served = serving.resolve(body.model)
    wish = _wish(body, served)
    given = await beside(request, _prompt, body, served)
    sequences = await serving.sequences(served, body, given, wish)
    prompt = sequences[0].prompt
    if body.stream:
        return await send_events(request, _chunks(serving, body, served, sequences))
    await serving.run(served, sequences)
    prompt_ids = prompt if body.return_token_ids else None
    return json_reply(
        {
            **head(serving, served, "chatcmpl", "chat.completion"),
            "choices": [_choice(serving, body, served, i, sequence) for i, sequence in enumerate(sequences)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage(sequences),
            "prompt_logprobs": prompt_logprob_entries(served, sequences[0]),
            "prompt_token_ids": prompt_ids,
        }
    )


def _wish(body: ChatBody, served: Served) -> SamplingWish:
    """A call that must be the only one ends the answer, which leaves the distribution as it is."""
    rule = tool_rule(body)
    form = chat_form(body, rule, served.text)
    ends = rule.single and (form is None or form.calls is not None)
    return SamplingWish(
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        form=form,
        last_text=CLOSE if ends else None,
        last_token=served.text.single_token(CLOSE) if ends else None,
    )


def _prompt(body: ChatBody, served: Served) -> list[int]:
    """The prompt's ids: as given, extended from given ones, or rendered."""
    chat, tools = served.text.chat, body.tools or ()
    if body.tokens is not None:
        return body.tokens
    if body.prompt_token_ids is None or body.continuation_from is None:
        return chat.render(body.messages, tools)
    at = body.continuation_from
    if not 0 < at < len(body.messages):
        raise BadRequest(
            f"continuation_from={at} must leave at least one of {len(body.messages)} messages on either side",
            param="continuation_from",
        )
    stopped = bool(body.prompt_token_ids) and body.prompt_token_ids[-1] in chat.stop_token_ids
    bridge = chat.bridge(body.messages[:at], body.messages[at:], tools, stopped=stopped)
    return body.prompt_token_ids + bridge


def _choice(
    serving: Serving, body: ChatBody, served: Served, index: int, sequence: Sequence
) -> dict[str, Any]:
    message, finish_reason = _message(serving, body, served, sequence)
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(body, served, Part.whole(sequence)),
        "finish_reason": finish_reason,
        "stop_reason": stop_reason(served, sequence),
        "token_ids": sequence.sampled if body.return_token_ids else None,
        # vLLM has the prompt only at the top level; HUD's client reads it here.
        "prompt_token_ids": sequence.prompt if body.return_token_ids else None,
        "weight_versions": sequence.version_spans(),
        **adjusted(sequence),
    }


def _message(
    serving: Serving, body: ChatBody, served: Served, sequence: Sequence
) -> tuple[dict[str, Any], str | None]:
    turn = _tool_turn(body, served, sequence)
    message: dict[str, Any] = {"role": "assistant", "refusal": None, "annotations": None, "audio": None}
    message |= {"function_call": None, "reasoning": None}
    if turn is None:
        text = final_text(
            served,
            sequence,
            skip_special=body.skip_special_tokens,
            include_stop=body.include_stop_str_in_output,
        )
        return {**message, "content": text}, sequence.finish_reason
    message["content"] = turn.text or None
    message["tool_calls"] = [_call(serving, call.name, call.arguments) for call in turn.tool_calls]
    return message, "tool_calls" if sequence.finish_reason == "stop" else sequence.finish_reason


def _tool_turn(body: ChatBody, served: Served, sequence: Sequence) -> AssistantTurn | None:
    """The parsed turn when it holds well-formed tool calls that may be made."""
    if not body.tools or body.tool_choice == "none":
        return None
    turn = served.text.chat.parse(sequence.sampled, body.tools)
    return turn if turn.tool_calls and turn.parse_error is None else None


def _call(serving: Serving, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": serving.new_id("chatcmpl-tool"),
        "type": "function",
        "function": {"name": name, "arguments": orjson.dumps(arguments).decode("utf-8")},
    }


def _logprobs(body: ChatBody, served: Served, part: Part) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    as_id = bool(body.return_tokens_as_token_ids)
    if body.logprobs_as is not None:
        return logprob_columns(served, part, as_id=as_id)
    content = []
    for offset, (token, value) in enumerate(zip(part.token_ids, part.logprobs, strict=True)):
        entry = _token_entry(served, token, value, as_id=as_id)
        tops = [_token_entry(served, t, v, as_id=as_id) for t, v in part.likeliest(offset)]
        content.append({**entry, "top_logprobs": tops})
    return {"content": content}


def _token_entry(served: Served, token: int, logprob: float, *, as_id: bool) -> dict[str, Any]:
    return {
        "token": token_label(served, token, as_id=as_id),
        "logprob": logprob,
        "bytes": list(served.text.token_text(token).encode("utf-8")),
    }


async def _chunks(
    serving: Serving, body: ChatBody, served: Served, sequences: list[Sequence]
) -> AsyncGenerator[object, None]:
    start = {**head(serving, served, "chatcmpl", "chat.completion.chunk"), "system_fingerprint": None}
    for index, sequence in enumerate(sequences):
        opening = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        prompt_ids = {"prompt_token_ids": sequence.prompt} if body.return_token_ids else {}
        yield {**start, "choices": [{**opening, "logprobs": None}], **prompt_ids}
    writers = [_ChatStream(serving, body, served) for _ in sequences]
    async with aclosing(serving.stream(served, sequences)) as parts:
        async for index, part in parts:
            for delta in writers[index].deltas(part):
                yield {**start, "choices": [{"index": index, **delta}]}
    if body.stream_options is not None and body.stream_options.include_usage:
        yield {**start, "choices": [], "usage": usage(sequences)}


class _ChatStream:
    """Turns parts of one sequence into deltas: text as it comes, tool calls whole at the end."""

    def __init__(self, serving: Serving, body: ChatBody, served: Served) -> None:
        self._serving = serving
        self._body = body
        self._served = served
        self._growing = GrowingText(served.text, skip_special=body.skip_special_tokens)
        self._held = ""
        self._may_call = bool(body.tools) and body.tool_choice != "none"

    def deltas(self, part: Part) -> list[dict[str, Any]]:
        """What to send for a part; the last one carries the finish reason."""
        sequence, final = part.sequence, part.finish_reason is not None
        visible = part.so_far[:-1] if final and isinstance(sequence.stop_reason, int) else part.so_far
        self._held += self._growing.delta(visible, final=final)
        found: list[dict[str, Any]] = []
        delta: dict[str, Any] = {}
        turn = _tool_turn(self._body, self._served, sequence) if final else None
        text = self._take_text(final=final and turn is None)
        if text:
            delta["content"] = text
        if turn is not None:
            delta["tool_calls"] = [
                {"index": i, **_call(self._serving, call.name, call.arguments)}
                for i, call in enumerate(turn.tool_calls)
            ]
        reason = "tool_calls" if turn is not None and part.finish_reason == "stop" else part.finish_reason
        if delta or final or self._body.return_token_ids or self._body.logprobs:
            found.append(self._choice(part, delta, reason))
        return found

    def _take_text(self, *, final: bool) -> str:
        """The text that is safe to show: nothing from a possible tool call on, until the end."""
        if final or not self._may_call:
            text, self._held = self._held, ""
            return text
        at = self._held.find(OPEN[0])
        if at >= 0 and not (OPEN.startswith(self._held[at:]) or self._held.startswith(OPEN, at)):
            at = -1
        cut = len(self._held) if at < 0 else at
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _choice(self, part: Part, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        final = part.finish_reason is not None
        choice: dict[str, Any] = {
            "delta": delta,
            "logprobs": _logprobs(self._body, self._served, part),
            "finish_reason": reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = part.token_ids
        if final:
            choice["stop_reason"] = stop_reason(self._served, part.sequence)
            choice["weight_versions"] = part.sequence.version_spans()
            choice |= adjusted(part.sequence)
        return choice
