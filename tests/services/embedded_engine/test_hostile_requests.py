"""Requests that ended the decode thread, answered 500, or held up everyone else: each is refused by name, or
answered, and the engine goes on."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.services.embedded_engine.conftest import MODEL, POLICY, EngineProcess
from tests.services.policy_engine.policies import make_policy

from embedded_engine.engine import EmbeddedEngine
from embedded_engine.model_runner import RunnerLimits
from embedded_engine.weights import load_weights

PROMPT = "amber-queue is failing"
MULTIPLES: Any = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "integer", "multipleOf": 999_983}},
}


def post(
    engine: EngineProcess, path: str, body: dict[str, Any], *, within_s: float = 60.0
) -> httpx2.Response:
    return httpx2.post(f"{engine.url}{path}", json={"model": MODEL, **body}, timeout=within_s)


def complete(engine: EngineProcess, **body: Any) -> httpx2.Response:
    return post(engine, "/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "seed": 1, **body})


def check_lives(engine: EngineProcess) -> None:
    assert httpx2.get(f"{engine.url}/health", timeout=30).status_code == 200
    assert complete(engine).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"top_k": 2**64 - 1},
        {"stop_token_ids": [999_999, -1, 2**64 - 1], "min_tokens": 1},
        {"seed": 2**64 - 1, "n": 3},
        {"temperature": 1e300},
        {"logprobs": 20},
    ],
)
def test_numbers_that_no_tensor_takes_end_nothing(engine: EngineProcess, body: dict[str, Any]) -> None:
    assert complete(engine, **body).status_code == 200
    check_lives(engine)


@pytest.mark.parametrize(
    ("param", "body", "why"),
    [
        ("repetition_penalty", {"repetition_penalty": 1e-40}, "no token to draw"),
        ("min_tokens", {"stop_token_ids": list(range(4096)), "min_tokens": 2}, "no token to draw"),
        ("logit_bias", {"logit_bias": {"1" * 5000: 1}}, "token ids from 0 to"),
        ("stop", {"stop": [f"stop {index}" for index in range(1000)]}, "at most 64"),
        ("prompt", {"prompt": [[1]] * 100, "n": 64}, "at most 1024"),
        ("body.stop_token_ids.0", {"stop_token_ids": ["x"] * 300_000}, "valid integer"),
    ],
)
def test_what_cannot_be_sampled_is_the_requests_fault(
    engine: EngineProcess, param: str, body: dict[str, Any], why: str
) -> None:
    refused = complete(engine, **body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert why in error["message"]
    assert len(refused.content) < 4096
    check_lives(engine)


def test_ids_that_no_tokenizer_takes_are_refused(engine: EngineProcess) -> None:
    assert post(engine, "/detokenize", {"tokens": [2**32]}).status_code == 400
    assert post(engine, "/detokenize", {"tokens": [2**31 - 1]}).status_code == 200


def test_a_grammar_without_end_is_refused_and_holds_up_no_one(engine: EngineProcess) -> None:
    """It would take more than a minute; a thread that compiles it could not be ended."""
    longest_s = 0.0
    done = threading.Event()

    def neighbour() -> None:
        nonlocal longest_s
        while not done.is_set():
            started_s = time.monotonic()
            assert complete(engine, max_tokens=2).status_code == 200
            longest_s = max(longest_s, time.monotonic() - started_s)

    thread = threading.Thread(target=neighbour)
    thread.start()
    try:
        body = {"messages": [{"role": "user", "content": "x"}], "response_format": MULTIPLES}
        first = post(engine, "/v1/chat/completions", body)
        again_s = time.monotonic()
        again = post(engine, "/v1/chat/completions", body)
        again_s = time.monotonic() - again_s
    finally:
        done.set()
        thread.join()
    for refused in (first, again):
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == "response_format"
    assert again_s < 3, "what was tried is remembered"
    assert longest_s < 3
    small = {"messages": body["messages"], "max_tokens": 9, "structured_outputs": {"regex": "[ab]"}}
    assert post(engine, "/v1/chat/completions", small).json()["choices"][0]["message"]["content"] in (
        "a",
        "b",
    )


def engine_of(folder: Path) -> EmbeddedEngine:
    weights = load_weights(make_policy(folder / "v0", seed=1))
    return EmbeddedEngine(MODEL, weights, RunnerLimits(max_running=2, max_len=64, num_slots=3), str)


async def test_steering_whose_caller_left_ends_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """A supervisor that loses its patience: what it ordered last is found when the thread comes to it."""
    engine = engine_of(tmp_path)
    weights = load_weights(tmp_path / "v0")
    orders: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(engine.set_label("5")),
        asyncio.ensure_future(engine.add_model(f"{MODEL}@v1", weights, "1")),
    ]
    await asyncio.sleep(0)
    for order in orders:
        order.cancel()
    await asyncio.gather(*orders, return_exceptions=True)
    engine.start()
    try:
        assert await engine.call(lambda: engine.names) == [MODEL]
        await engine.add_model(f"{MODEL}@v1", weights, "1")
        assert engine.names == [MODEL, f"{MODEL}@v1"]
        waiting = asyncio.ensure_future(engine.pause("wait"))
        await engine.pause("keep")
        waiting.cancel()
        await engine.resume()
        assert engine.dead is None
        assert await engine.call(lambda: "alive") == "alive"
    finally:
        await engine.stop()


def test_a_policy_whose_unloading_was_given_up_is_served_on(engine: EngineProcess) -> None:
    """Its last request ended after the supervisor had left, and took the decode thread along."""
    name = f"{MODEL}@v7"
    loaded = httpx2.post(
        f"{engine.url}/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(POLICY)}, timeout=60
    )
    assert loaded.status_code == 200, loaded.text
    long = {"model": name, "prompt": PROMPT, "max_tokens": 400, "n": 32, "ignore_eos": True}
    answers: list[httpx2.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(httpx2.post(f"{engine.url}/v1/completions", json=long, timeout=120))
    )
    thread.start()
    time.sleep(0.3)
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{engine.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=0.3)
    thread.join()
    assert answers[0].status_code == 200
    check_lives(engine)
    assert complete(engine, model=name).status_code == 200
    unloaded = httpx2.post(f"{engine.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)
    assert unloaded.status_code == 200
    assert complete(engine, model=name).status_code == 404
