"""Server-sent events on their way through, cut at every possible place."""

import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from model_gateway.domain.calls import ApiRoute, CallLimits, read_call
from model_gateway.domain.errors import EngineLost
from model_gateway.domain.replies import TokenUsage
from model_gateway.usecases.streams import EventStream


class ReplyDouble:
    """ports.EngineReply over given chunks."""

    status = 200
    content_type = "text/event-stream"

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def read(self) -> bytes:
        return b"".join(self._chunks)

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    def close(self) -> None:
        self._chunks = []


def events(chunks: list[bytes], **body: Any) -> EventStream:
    request = {"model": "incident", "messages": [{"role": "user", "content": "?"}], "stream": True, **body}
    call = read_call(ApiRoute.CHAT, orjson.dumps(request), request, CallLimits(8, 100))
    return EventStream(call, ReplyDouble(chunks))


async def passed(reader: EventStream) -> bytes:
    first = await reader.first()
    return first + b"".join([block async for block in reader.rest()])


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


TOKENS = [event({"choices": [{"index": 0, "delta": {"content": word}}]}) for word in ("a", "b", "c")]
LAST = event(
    {
        "choices": [
            {
                "index": 0,
                "delta": {},
                "finish_reason": "stop",
                "weight_versions": [
                    {"version": "4", "start": 0, "end": 2},
                    {"version": "unproven-5-after-4", "start": 2, "end": 3},
                ],
            }
        ]
    }
)
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
DONE = b"data: [DONE]\n\n"
WHOLE = b"".join([*TOKENS, LAST, USAGE, DONE])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
async def test_bytes_pass_unchanged_however_they_are_cut(size: int) -> None:
    chunks = [WHOLE[start : start + size] for start in range(0, len(WHOLE), size)]
    reader = events(chunks, stream_options={"include_usage": True})
    assert await passed(reader) == WHOLE
    assert reader.usage == TokenUsage(7, 3)
    assert reader.versions == [4, 5]
    assert reader.finish_reasons == ["stop"]


@pytest.mark.parametrize("size", [1, 10_000])
async def test_usage_that_was_not_asked_for_is_kept_back(size: int) -> None:
    chunks = [WHOLE[start : start + size] for start in range(0, len(WHOLE), size)]
    reader = events(chunks)
    assert await passed(reader) == b"".join([*TOKENS, LAST, DONE])
    assert reader.usage == TokenUsage(7, 3)


async def test_comments_of_an_event_stream_reach_the_client_unchanged() -> None:
    reader = events([b": keep-alive\n\n", *TOKENS, DONE])
    assert await passed(reader) == b": keep-alive\n\n" + b"".join(TOKENS) + DONE


async def test_an_end_without_done_is_a_loss() -> None:
    reader = events(TOKENS)
    with pytest.raises(EngineLost, match="in the middle"):
        await passed(reader)


async def test_an_end_before_the_first_event_is_a_loss() -> None:
    with pytest.raises(EngineLost, match="before the first event"):
        await events([]).first()
    with pytest.raises(EngineLost, match="before the first event"):
        await events([b"data: {"]).first()


async def test_an_engines_own_error_ends_the_stream() -> None:
    error = event({"error": {"message": "boom"}})
    assert await passed(events([TOKENS[0], error])) == TOKENS[0] + error


async def test_an_event_that_is_no_json_is_a_loss() -> None:
    with pytest.raises(EngineLost, match="not JSON"):
        await events([b'data: {"usage":\n\n']).first()


async def test_a_long_event_in_many_pieces_is_read_in_a_time_that_grows_with_its_length() -> None:
    began = time.process_time()
    text = b'data: {"a": "' + b"x" * (1 << 23) + b'"}\n\n' + b"data: [DONE]\n\n"
    stream = events([text[at : at + 512] for at in range(0, len(text), 512)])
    assert await passed(stream) == text
    assert time.process_time() - began < 5


async def test_an_endless_event_is_a_loss() -> None:
    with pytest.raises(EngineLost, match="more than"):
        await events([b"data: " + b"x" * (17 << 20)]).first()


async def test_usage_is_seen_beside_usage_that_is_null() -> None:
    block = event({"choices": [{"delta": {}}], "usage": None}) + USAGE
    reader = events([block, DONE])
    assert await passed(reader) == event({"choices": [{"delta": {}}], "usage": None}) + DONE
    assert reader.usage == TokenUsage(7, 3)
