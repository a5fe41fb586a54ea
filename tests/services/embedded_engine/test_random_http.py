"""Random bytes and random fields at every route of the engine: no 5xx, and it goes on answering."""

import json
import random
from typing import Any, Final
from urllib.parse import urlsplit

from tests.services.embedded_engine.conftest import MODEL, EngineProcess
from tests.services.embedded_engine.test_hostile_requests import check_lives
from tests.support.fuzzing import CASES, randomness
from tests.support.random_http import answer_of, check_answer, request_of

ROUTES: Final = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/tokens",
    "/inference/v1/generate",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/is_paused",
    "/collective_rpc",
    "/weight_info",
    "/health",
    "/version",
    "/metrics",
)
"""Without those that stop the engine, as they are to for a caller that may steer it."""
BODIES: Final = ROUTES[:6] + ROUTES[7:9] + ROUTES[10:11]
FIELDS: Final = (
    "prompt", "messages", "tools", "tool_choice", "max_tokens", "min_tokens", "temperature", "top_p", "top_k",
    "min_p", "n", "seed", "stop", "stream", "stop_token_ids", "logprobs", "prompt_logprobs", "top_logprobs",
    "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "response_format",
    "structured_outputs", "echo", "suffix", "user", "metadata", "token_ids", "tokens", "sampling_params",
    "lora_name", "lora_path", "chat_template_kwargs", "parallel_tool_calls", "stream_options", "best_of",
    "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "add_generation_prompt", "method",
    "args",
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, 1, -1, 7, 2**31, 2**64, 1e308, -1e308, 0.5, float("nan"), float("inf"), "", "a", "\x00",
    "\ud800", "x" * 3000, [], {}, [[]], [None], [1, 2, 3], [-1], [2**40], ["a", "b"], [[1], [2]], {"a": 1},
    [{"role": "user", "content": "hi"}], [{"role": "tool"}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"type": "no such"}}},
    {"regex": "(" * 50}, {"choice": []},
    {"grammar": "root ::= root"}, {"5": 1e9}, {"include_usage": True}, {"max_tokens": "x", "temperature": []},
)  # fmt: skip


def body_of(dice: random.Random) -> bytes:
    """Often a request that could be meant, with fields that could not."""
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 2} if dice.random() < 0.9 else {}
    if dice.random() < 0.7:
        body |= {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "token_ids": [1, 2]}
    body |= {name: dice.choice(VALUES) for name in dice.sample(FIELDS, dice.randint(1, 4))}
    return json.dumps(body).encode()


async def test_no_random_bytes_are_answered_with_a_5xx(engine: EngineProcess) -> None:
    port = urlsplit(engine.url).port or 0
    for path in ROUTES:
        dice = randomness(path)
        for _ in range(3 * CASES):
            raw = request_of(dice, path)
            check_answer(raw, await answer_of(port, raw))
    check_lives(engine)


async def test_no_random_fields_are_answered_with_a_5xx(engine: EngineProcess) -> None:
    port = urlsplit(engine.url).port or 0
    for path in BODIES:
        dice = randomness(f"fields of {path}")
        for _ in range(5 * CASES):
            body = body_of(dice)
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            raw = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
            check_answer(raw, await answer_of(port, raw))
    check_lives(engine)
