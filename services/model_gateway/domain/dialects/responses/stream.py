"""The chunks of a streamed chat reply as the events of a streamed response."""

from collections.abc import Mapping
from typing import Any

from model_gateway.domain.dialects.dialect import Asked, Body, DialectEvent
from model_gateway.domain.dialects.replies import Usage, calls_in, reasoning_in, usage_in
from model_gateway.domain.dialects.responses.reply import (
    ItemIds,
    call_item,
    message_item,
    reasoning_item,
    response_body,
    text_logprobs,
    text_part,
    wants_logprobs,
)


class _Text:
    """A message, or a reasoning item: text that grows."""

    def __init__(self, item_id: str, *, is_reasoning: bool) -> None:
        self._id = item_id
        self._is_reasoning = is_reasoning
        self._text = ""
        self._logprobs: list[Body] = []

    @property
    def is_reasoning(self) -> bool:
        """Which of the two."""
        return self._is_reasoning

    def opened(self) -> list[tuple[str, Body]]:
        return [("response.content_part.added", {**self._place(), "part": self._part()})]

    def grown(self, text: str, logprobs: list[Body]) -> list[tuple[str, Body]]:
        """The delta of a chunk."""
        self._text += text
        self._logprobs += logprobs
        if self._is_reasoning:
            return [("response.reasoning_text.delta", {**self._place(), "delta": text})]
        return [("response.output_text.delta", {**self._place(), "delta": text, "logprobs": logprobs})]

    def closed(self) -> list[tuple[str, Body]]:
        whole: Body = {**self._place(), "text": self._text}
        kind = "response.reasoning_text.done"
        if not self._is_reasoning:
            kind, whole = "response.output_text.done", {**whole, "logprobs": self._logprobs}
        return [(kind, whole), ("response.content_part.done", {**self._place(), "part": self._part()})]

    def item(self, status: str) -> Body:
        if self._is_reasoning:
            return reasoning_item(self._id, self._text, status)
        begun = status != "in_progress" or self._text
        item = message_item(self._id, self._text, self._logprobs, status)
        return item if begun else {**item, "content": []}

    def _place(self) -> Body:
        return {"item_id": self._id, "content_index": 0}

    def _part(self) -> Body:
        if self._is_reasoning:
            return {"type": "reasoning_text", "text": self._text}
        return text_part(self._text, self._logprobs)


class _Call:
    """A function call: arguments that grow."""

    def __init__(self, item_id: str, first: Mapping[str, Any]) -> None:
        function = first.get("function") or {}
        self.index = first.get("index")
        self._id = item_id
        self._call = {"id": first.get("id") or item_id, "name": function.get("name") or ""}
        self._arguments = ""

    def opened(self) -> list[tuple[str, Body]]:
        return []

    def grown(self, more: Mapping[str, Any]) -> list[tuple[str, Body]]:
        """The delta of a chunk."""
        arguments = str((more.get("function") or {}).get("arguments") or "")
        if not arguments:
            return []
        self._arguments += arguments
        return [("response.function_call_arguments.delta", {"item_id": self._id, "delta": arguments})]

    def closed(self) -> list[tuple[str, Body]]:
        done = {"item_id": self._id, "arguments": self._arguments, "name": self._call["name"]}
        return [("response.function_call_arguments.done", done)]

    def item(self, status: str) -> Body:
        function = {"name": self._call["name"], "arguments": self._arguments}
        return call_item(self._id, {"id": self._call["id"], "function": function}, status)


class ResponseStream:
    """One streamed response. Items come one after the other: a new one closes the one before."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._ids = ItemIds(asked.request_id)
        self._sequence = 0
        self._done: list[Body] = []
        self._open: _Text | _Call | None = None
        self._usage = Usage()
        self._finish_reason: Any = None

    def begin(self) -> list[DialectEvent]:
        """response.created, response.in_progress."""
        body = {"response": response_body(self._asked, [], None, None)}
        return self._events([("response.created", body), ("response.in_progress", body)])

    def feed(self, chunk: Mapping[str, Any]) -> list[DialectEvent]:
        """What a chunk adds."""
        self._usage = usage_in(chunk) or self._usage
        found: list[DialectEvent] = []
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            logprobs = text_logprobs(choice) if wants_logprobs(self._asked) else []
            if thought := reasoning_in(delta):
                found += self._grow_text(thought, [], is_reasoning=True)
            if delta.get("content"):
                found += self._grow_text(delta["content"], logprobs, is_reasoning=False)
            for call in calls_in(delta):
                found += self._grow_call(call)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        return found

    def end(self) -> list[DialectEvent]:
        """The last item closed, then response.completed, response.incomplete or response.failed."""
        found: list[DialectEvent] = []
        if self._open is None and not self._done:
            found += self._begin_item(_Text(self._ids.next("msg"), is_reasoning=False))
        found += self._close(is_last=True)
        body = response_body(self._asked, self._done, self._finish_reason or "nothing", self._usage)
        return found + self._events([(f"response.{body['status']}", {"response": body})])

    def failed(self, error: Mapping[str, Any]) -> list[DialectEvent]:
        """response.failed with what there is, then `error`, which clients raise."""
        body = response_body(self._asked, self._done, None, self._usage)
        said = {"code": "server_error", "message": str(error.get("message"))}
        failed = {"response": {**body, "status": "failed", "error": said}}
        last = {"code": error.get("code"), "message": error.get("message"), "param": error.get("param")}
        return self._events([("response.failed", failed), ("error", {**last, "error": dict(error)})])

    def _grow_text(self, text: str, logprobs: list[Body], *, is_reasoning: bool) -> list[DialectEvent]:
        found: list[DialectEvent] = []
        item = self._open
        if not isinstance(item, _Text) or item.is_reasoning is not is_reasoning:
            prefix = "rs" if is_reasoning else "msg"
            item = _Text(self._ids.next(prefix), is_reasoning=is_reasoning)
            found += self._begin_item(item)
        return found + self._events(item.grown(text, logprobs))

    def _grow_call(self, call: Mapping[str, Any]) -> list[DialectEvent]:
        found: list[DialectEvent] = []
        item = self._open
        if not isinstance(item, _Call) or item.index != call.get("index"):
            item = _Call(self._ids.next("fc"), call)
            found += self._begin_item(item)
        return found + self._events(item.grown(call))

    def _begin_item(self, item: _Text | _Call) -> list[DialectEvent]:
        found = self._close(is_last=False)
        self._open = item
        added = ("response.output_item.added", {"item": item.item("in_progress")})
        return found + self._events([added, *item.opened()])

    def _close(self, *, is_last: bool) -> list[DialectEvent]:
        if self._open is None:
            return []
        is_cut = is_last and self._finish_reason == "length"
        item = self._open.item("incomplete" if is_cut else "completed")
        found = self._events([*self._open.closed(), ("response.output_item.done", {"item": item})])
        self._done.append(item)
        self._open = None
        return found

    def _events(self, made: list[tuple[str, Body]]) -> list[DialectEvent]:
        """Numbered; those of an item say which output it is."""
        found = []
        for name, data in made:
            numbered: Body = {"type": name, "sequence_number": self._sequence, **data}
            if "item_id" in data or "item" in data:
                numbered["output_index"] = len(self._done)
            found.append(DialectEvent(name, numbered))
            self._sequence += 1
        return found
