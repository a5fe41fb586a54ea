"""The client against replies that decide what it must do; healthy engines are in tests/contract/engines."""

import asyncio
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.libs.engine_client.engine_double import Answer, generated, refusal, scripted

from engine_client import (
    ContextOverflow,
    EngineClient,
    EngineRejected,
    EngineUnavailable,
    GenerationAborted,
    MalformedReply,
    SamplingParams,
    TokenSpan,
    parse_label,
    pinned_name,
    pinned_version,
    proven_label,
    unproven_label,
)
from engine_client.labels import WeightLabel
from service_kit.ports import free_ports

GENERATE, COMPLETE = "/inference/v1/generate", "/v1/completions"
PARAMS = SamplingParams(max_tokens=4)


async def test_a_request_carries_what_the_wire_wants() -> None:
    serving = scripted({GENERATE: lambda _: generated([7, 8], [("3", 0, 2)])})
    async with serving as (url, seen), EngineClient(url, new_seed=lambda: 41) as client:
        made = await client.generate("incident", [1, 2], SamplingParams(max_tokens=9, stop_token_ids=(5,)))
    body = seen[0][1]
    assert (body["model"], body["token_ids"]) == ("incident", [1, 2])
    assert body["sampling_params"] == {
        "max_tokens": 9, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 41, "stop_token_ids": [5],
        "ignore_eos": False, "n": 1, "skip_special_tokens": False, "logprobs": 0,
    }  # fmt: skip
    assert made.version_spans == (TokenSpan(3, 0, 2),)
    assert made.logprobs == (-0.5, -0.5)


async def test_seeds_differ_unless_given() -> None:
    serving = scripted({GENERATE: lambda _: generated([7], [("3", 0, 1)])})
    async with serving as (url, seen), EngineClient(url) as client:
        for _ in range(4):
            await client.generate("m", [1], PARAMS)
        await client.generate("m", [1], SamplingParams(max_tokens=4, seed=0))
    seeds = [body["sampling_params"]["seed"] for _, body in seen]
    assert len(set(seeds[:4])) == 4
    assert seeds[4] == 0


async def test_spans_of_several_versions_are_kept_apart_and_neighbours_merged() -> None:
    spans = [("3", 0, 2), ("unproven-4-after-3", 2, 3), ("4", 3, 5)]
    answers: dict[str, Any] = {
        GENERATE: lambda _: generated([1, 2, 3, 4, 5], spans),
        "/weight_info": lambda _: {"weight_version": "4"},
    }
    async with scripted(answers) as (url, _), EngineClient(url) as client:
        made = await client.generate("m", [1], PARAMS)
    assert made.version_spans == (TokenSpan(3, 0, 2), TokenSpan(4, 2, 5))


async def test_unproven_tokens_wait_for_the_verdict() -> None:
    verdicts = iter(["unproven-4-after-3", "unproven-4-after-3", "4"])
    answers: dict[str, Any] = {
        GENERATE: lambda _: generated([1], [("unproven-4-after-3", 0, 1)]),
        "/weight_info": lambda _: {"weight_version": next(verdicts)},
    }
    async with scripted(answers) as (url, seen), EngineClient(url) as client:
        made = await client.generate("m", [1], PARAMS)
    assert made.version_spans == (TokenSpan(4, 0, 1),)
    assert [path for path, _ in seen].count("/weight_info") == 3


@pytest.mark.parametrize("now", ["5", "unproven-6-after-4", "unproven-6-after-5"])
async def test_a_later_reload_shows_that_the_earlier_one_was_proven(now: str) -> None:
    answers: dict[str, Any] = {
        GENERATE: lambda _: generated([1], [("unproven-4-after-3", 0, 1)]),
        "/weight_info": lambda _: {"weight_version": now},
    }
    async with scripted(answers) as (url, _), EngineClient(url) as client:
        assert (await client.generate("m", [1], PARAMS)).version_spans == (TokenSpan(4, 0, 1),)


@pytest.mark.parametrize("now", ["3", "unproven-5-after-3", "default"])
async def test_tokens_of_refused_weights_never_reach_the_caller(now: str) -> None:
    answers: dict[str, Any] = {
        GENERATE: lambda _: generated([1], [("unproven-4-after-3", 0, 1)]),
        "/weight_info": lambda _: {"weight_version": now},
    }
    async with scripted(answers) as (url, _), EngineClient(url) as client:
        with pytest.raises(EngineUnavailable, match="refused"):
            await client.generate("m", [1], PARAMS)


@pytest.mark.parametrize("now", ["7", "unproven-8-after-7", "default"])
async def test_a_version_that_was_gone_back_to_and_refused_never_reaches_the_caller(now: str) -> None:
    answers: dict[str, Any] = {
        GENERATE: lambda _: generated([1], [("unproven-5-after-7", 0, 1)]),
        "/weight_info": lambda _: {"weight_version": now},
    }
    async with scripted(answers) as (url, _), EngineClient(url) as client:
        with pytest.raises(EngineUnavailable, match="refused"):
            await client.generate("m", [1], PARAMS)


@pytest.mark.parametrize("now", ["5", "unproven-8-after-5"])
async def test_a_version_that_was_gone_back_to_is_proven_by_its_own_name(now: str) -> None:
    answers: dict[str, Any] = {
        GENERATE: lambda _: generated([1], [("unproven-5-after-7", 0, 1)]),
        "/weight_info": lambda _: {"weight_version": now},
    }
    async with scripted(answers) as (url, _), EngineClient(url) as client:
        assert (await client.generate("m", [1], PARAMS)).version_spans == (TokenSpan(5, 0, 1),)


async def test_an_engine_without_a_proven_version_is_not_used() -> None:
    serving = scripted({GENERATE: lambda _: generated([1], [("default", 0, 1)])})
    async with serving as (url, _), EngineClient(url) as client:
        with pytest.raises(EngineUnavailable, match="no version"):
            await client.generate("m", [1], PARAMS)


def _completed(token_ids: list[int]) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-1.0] * len(token_ids)}
    choice = {"index": 0, "finish_reason": "stop", "token_ids": token_ids, "logprobs": logprobs}
    return {"choices": [choice], "usage": {}}


@pytest.mark.parametrize(
    ("versions", "exact"), [(["2", "2"], True), (["2", "3"], False)], ids=["steady", "moved meanwhile"]
)
async def test_without_the_generate_route_versions_are_asked_before_and_after(
    versions: list[str], exact: bool
) -> None:
    answers: dict[str, Any] = {
        GENERATE: lambda _: refusal(
            403, "Scale-out endpoints are disabled. Restart with --enable-scale-out."
        ),
        COMPLETE: lambda _: _completed([4, 5]),
        "/weight_info": lambda _: {"weight_version": versions.pop(0)},
    }
    async with scripted(answers) as (url, seen), EngineClient(url) as client:
        made = await client.generate("m", [1, 2], PARAMS)
        assert made.version_spans == (TokenSpan(2, 0, 2),)
        assert made.spans_are_exact is exact
        versions += ["7", "7"]
        await client.generate("m", [1, 2], PARAMS)
    assert [path for path, _ in seen].count(GENERATE) == 1, "it is asked once"


async def test_a_pinned_name_says_its_version_itself() -> None:
    answers: dict[str, Any] = {COMPLETE: lambda _: _completed([4])}
    async with scripted(answers) as (url, _), EngineClient(url) as client:
        made = await client.generate("incident@v12", [1], PARAMS)
    assert made.version_spans == (TokenSpan(12, 0, 1),)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens. However, your prompt contains 3000 input tokens",
        "The decoder prompt (length 2048) plus the number of requested output tokens (at least 1) is longer "
        "than the maximum model length of 2048.",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        "max_tokens=5000 cannot be greater than max_model_len=2048.",
    ],
)
async def test_every_wording_of_a_full_context_is_an_overflow(message: str) -> None:
    async with scripted({GENERATE: lambda _: refusal(400, message)}) as (url, _), EngineClient(url) as client:
        with pytest.raises(ContextOverflow):
            await client.generate("m", [1], PARAMS)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, EngineRejected), (404, EngineRejected), (422, EngineRejected), (429, EngineUnavailable),
     (500, EngineUnavailable), (503, EngineUnavailable)],
)  # fmt: skip
async def test_statuses_become_reactions(status: int, kind: type[Exception]) -> None:
    serving = scripted({GENERATE: lambda _: refusal(status, "because")})
    async with serving as (url, _), EngineClient(url) as client:
        with pytest.raises(kind, match="because"):
            await client.generate("m", [1], PARAMS)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": []},
        {"token_ids": [1, 2, 3]},
        {"logprobs": None},
        {"logprobs": {"content": [{"logprob": float("nan")}]}},
        {"finish_reason": "tired"},
        {"weight_versions": []},
        {"weight_versions": [{"version": "3", "start": 0, "end": 5}]},
        {"weight_versions": [{"version": "3", "start": 1, "end": 1}]},
    ],
)
async def test_replies_that_do_not_add_up_are_malformed(changes: dict[str, Any]) -> None:
    answer = generated([7], [("3", 0, 1)], **changes)
    async with scripted({GENERATE: lambda _: answer}) as (url, _), EngineClient(url) as client:
        with pytest.raises(MalformedReply):
            await client.generate("m", [1], PARAMS)


async def test_an_abort_is_no_completion() -> None:
    answer = generated([7], [("3", 0, 1)], finish_reason="abort")
    async with scripted({GENERATE: lambda _: answer}) as (url, _), EngineClient(url) as client:
        with pytest.raises(GenerationAborted):
            await client.generate("m", [1], PARAMS)


async def test_silence_ends_at_the_deadline() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, EngineClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(EngineUnavailable, match=r"within 0\.2 s"):
            await client.generate("m", [1], PARAMS, timeout_s=0.2)
        assert not await client.health(timeout_s=0.2)


async def test_an_engine_that_is_gone_is_unavailable() -> None:
    (port,) = free_ports(1)
    async with EngineClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await client.generate("m", [1], PARAMS)
        assert not await client.health()


async def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    """uvicorn closes idle connections; the next request on such a one must not fail."""
    calls = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        while (line := await reader.readline()) not in (b"", b"\r\n"):
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        await reader.readexactly(length)
        calls += 1
        if calls == 2:
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}")
        await writer.drain()
        await handle(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, EngineClient(f"http://127.0.0.1:{port}") as client:
        await client.update_weight_version("1")
        await client.update_weight_version("2")
        server.close()
    assert calls == 3


def test_a_kept_connection_that_was_reset_before_the_next_request_is_replaced() -> None:
    """A caller whose loop stood still sees it only as it writes: a broken pipe, not the server's end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=_answer_and_reset_the_first, args=(listening,))
        server.start()
        asyncio.run(_two_updates_around_a_pause(listening.getsockname()[1]))
        server.join(10)


def _answer_and_reset_the_first(listening: socket.socket) -> None:
    for at in range(2):
        connection, _ = listening.accept()
        with connection:
            while not connection.recv(65536).endswith(b"}"):
                pass
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
            )
            if at == 0:
                time.sleep(0.1)  # else the reset overtakes the answer
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _two_updates_around_a_pause(port: int) -> None:
    async with EngineClient(f"http://127.0.0.1:{port}") as client:
        await client.update_weight_version("1")
        time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still while the reset comes in
        await client.update_weight_version("2")


async def test_adapters_may_answer_in_plain_text() -> None:
    answers: dict[str, Any] = {"/v1/load_lora_adapter": lambda _: web.Response(text="Success: added")}
    async with scripted(answers) as (url, seen), EngineClient(url) as client:
        await client.load_adapter("incident@v3", Path("/policies/3"))
    assert seen[0][1] == {"lora_name": "incident@v3", "lora_path": "/policies/3"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
    ],
)
def test_impossible_settings_fail_before_they_are_sent(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        SamplingParams(**{"max_tokens": 1, **wrong})


def test_labels_say_version_and_proof() -> None:
    assert parse_label(proven_label(12)) == WeightLabel(12, 12)
    assert parse_label(unproven_label(12, after=9)) == WeightLabel(12, 9)
    for junk in ("default", "", "-1", "012", "unproven-3", "12 ", "unproven-3-after-x"):
        assert parse_label(junk) is None
    assert pinned_version(pinned_name("a@vb", 7)) == 7
    assert pinned_version("incident") is None


async def test_prefixes_that_an_engine_does_not_forget_are_reset_with_what_runs() -> None:
    said = iter([{"success": False}, {"success": True}])
    answers: dict[str, Answer] = {"/reset_prefix_cache": lambda _: next(said)}
    async with scripted(answers) as (url, seen), EngineClient(url) as client:
        await client.reset_prefix_cache()
    assert [path for path, _ in seen] == [
        "/reset_prefix_cache",
        "/reset_prefix_cache?reset_running_requests=true",
    ]


async def test_an_engine_that_keeps_prefixes_of_older_weights_is_not_believed() -> None:
    answers: dict[str, Answer] = {"/reset_prefix_cache": lambda _: {"success": False}}
    async with scripted(answers) as (url, _), EngineClient(url) as client:
        for recompute_running in (False, True):
            with pytest.raises(EngineUnavailable, match="prefixes that older weights computed"):
                await client.reset_prefix_cache(recompute_running=recompute_running)
