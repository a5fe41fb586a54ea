"""What the handlers share: served policies by name, and running sequences from request to result."""

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedded_engine.engine import EmbeddedEngine
from embedded_engine.errors import BadRequest, EngineDead, UnknownModel
from embedded_engine.http.bodies import SamplingBody
from embedded_engine.http.text import Text
from embedded_engine.sampling import SamplingSpec
from embedded_engine.sequences import ERROR, Part, Progress, Sequence

_MAX_LOGPROBS = 20
_MAX_N = 64
_MAX_SEED = 2**64


@dataclass(frozen=True, slots=True)
class Served:
    """One policy as the wire knows it."""

    name: str
    root: str
    text: Text
    defaults: dict[str, Any]
    """temperature, top_p, top_k of generation_config.json."""
    created: int


class Serving:
    """Served policies by name, and the way from a request body to finished sequences."""

    def __init__(
        self, engine: EmbeddedEngine, directory: Path, on_end: Callable[[str, Sequence, float], None]
    ) -> None:
        """`on_end`: called with (served name, sequence, now) when a sequence ended."""
        self.engine = engine
        self._on_end = on_end
        self._served: dict[str, Served] = {}
        self._ids = itertools.count()
        self._salt = secrets.token_hex(4)
        self.register(engine.main, directory)

    def register(self, name: str, directory: Path) -> Served:
        """Make a policy's tokenizer and defaults known under `name`. Raises InvalidModelDir."""
        served = Served(name, str(directory), Text(directory), _defaults(directory), int(time.time()))
        self._served[name] = served
        return served

    def forget(self, name: str) -> None:
        """The opposite of `register`."""
        self._served.pop(name, None)

    def resolve(self, name: str | None) -> Served:
        """The policy of a request; none named means the main one. Raises UnknownModel."""
        found = self._served.get(name or self.engine.main)
        if found is None:
            raise UnknownModel(name)
        return found

    def new_id(self, prefix: str) -> str:
        """A unique request id."""
        return f"{prefix}-{self._salt}{next(self._ids):08x}"

    def spec(
        self,
        served: Served,
        body: SamplingBody,
        prompt_len: int,
        *,
        logprobs: int | None,
        max_tokens: int | None,
    ) -> SamplingSpec:
        """Checked sampling settings for a prompt of that length. Raises BadRequest in vLLM's words."""
        limit = self.engine.limits.max_len
        room = limit - prompt_len
        wanted = room if max_tokens is None else max_tokens
        if wanted < 1:
            raise BadRequest(
                f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})",
                param="max_tokens",
            )
        if wanted > limit:
            raise BadRequest(
                f"max_tokens={wanted} cannot be greater than max_model_len={limit}. Please request fewer "
                f"output tokens. (parameter=max_tokens, value={wanted})",
                param="max_tokens",
            )
        own = frozenset[int]() if body.ignore_eos else served.text.chat.stop_token_ids
        return SamplingSpec(
            max_tokens=min(wanted, room),
            seed=secrets.randbits(63) if body.seed is None else body.seed % _MAX_SEED,
            stop_token_ids=own | frozenset(body.stop_token_ids or ()),
            stop=body.stops,
            min_tokens=min(body.min_tokens, wanted),
            num_top_logprobs=_count("logprobs", logprobs),
            num_prompt_logprobs=_count("prompt_logprobs", body.prompt_logprobs),
            **_distribution(served, body),
        )

    def check_prompt(self, token_ids: list[int]) -> None:
        """Raises BadRequest, in vLLM's words, for a prompt that cannot be continued."""
        limit = self.engine.limits.max_len
        vocab = self.engine.runner_of(self.engine.main).model.config.vocab_size
        if not token_ids:
            raise BadRequest("You must pass at least one prompt", param="prompt")
        if len(token_ids) >= limit:
            raise BadRequest(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains "
                f"{len(token_ids)} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={len(token_ids)})",
                param="input_tokens",
            )
        worst = max(token_ids)
        if worst >= vocab:
            raise BadRequest(f"Token id {worst} is out of vocabulary")

    def sequences(self, prompt: list[int], spec: SamplingSpec, n: int) -> list[Sequence]:
        """`n` sequences of one prompt; each draws from its own stream of randomness."""
        if not 1 <= n <= _MAX_N:
            raise BadRequest(f"n must be at least 1 and at most {_MAX_N}, got {n}.", param="n")
        if n > 1 and spec.temperature == 0:
            raise BadRequest(f"n must be 1 when using greedy sampling, got {n}.", param="n")
        return [Sequence(prompt, replace(spec, seed=spec.seed + index)) for index in range(n)]

    async def run(self, served: Served, sequences: list[Sequence]) -> None:
        """Return when every sequence ended. Cancelled (the client is gone): they are aborted."""
        done = asyncio.get_running_loop().create_future()
        left = len(sequences)

        def one_ended(_: Progress) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not done.done():
                done.set_result(None)

        for sequence in sequences:
            sequence.listener = one_ended
        self.engine.submit(served.name, sequences)
        try:
            await done
        except asyncio.CancelledError:
            self.engine.abort(served.name, sequences)
            raise
        self._ended(served, sequences)

    async def stream(
        self, served: Served, sequences: list[Sequence]
    ) -> AsyncGenerator[tuple[int, Part], None]:
        """(index of the sequence, what is new of it) as it comes. Closed early: the sequences are aborted."""
        news: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()

        def listener_of(index: int) -> Callable[[Progress], None]:
            return lambda progress: news.put_nowait((index, progress))

        for index, sequence in enumerate(sequences):
            sequence.streams, sequence.listener = True, listener_of(index)
        self.engine.submit(served.name, sequences)
        left, shown = len(sequences), [0] * len(sequences)
        try:
            while left:
                index, progress = await news.get()
                left -= progress.finish_reason is not None
                if progress.num_tokens == shown[index] and progress.finish_reason is None:
                    continue
                part = Part(sequences[index], shown[index], progress.num_tokens, progress.finish_reason)
                shown[index] = progress.num_tokens
                yield index, part
        finally:
            if left:
                self.engine.abort(served.name, sequences)
        self._ended(served, sequences)

    def _ended(self, served: Served, sequences: list[Sequence]) -> None:
        now_s = time.monotonic()
        for sequence in sequences:
            self._on_end(served.name, sequence, now_s)
        for sequence in sequences:
            if sequence.finish_reason == ERROR:
                raise EngineDead(sequence.error or "the sequence failed")


def _count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if value < 0:
        raise BadRequest(
            f"{name} must be non-negative, got {value}. (parameter={name}, value={value})", param=name
        )
    if value > _MAX_LOGPROBS:
        raise BadRequest(
            f"Requested sample {name} of {value}, which is greater than max allowed: {_MAX_LOGPROBS} "
            f"(parameter={name}, value={value})",
            param=name,
        )
    return value


def _distribution(served: Served, body: SamplingBody) -> dict[str, Any]:
    temperature = served.defaults["temperature"] if body.temperature is None else body.temperature
    top_p = served.defaults["top_p"] if body.top_p is None else body.top_p
    top_k = served.defaults["top_k"] if body.top_k is None else max(body.top_k, 0) if body.top_k >= -1 else -2
    if not temperature >= 0:
        raise BadRequest(
            f"temperature must be non-negative, got {temperature}. "
            f"(parameter=temperature, value={temperature})",
            param="temperature",
        )
    if not 0 < top_p <= 1:
        raise BadRequest(
            f"top_p must be in (0, 1], got {top_p}. (parameter=top_p, value={top_p})", param="top_p"
        )
    if top_k < 0:
        raise BadRequest(f"top_k must be 0 (disable), or at least 1, got {body.top_k}.", param="top_k")
    return {"temperature": float(temperature), "top_p": float(top_p), "top_k": int(top_k)}


def _defaults(directory: Path) -> dict[str, Any]:
    path = directory / "generation_config.json"
    raw = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {
        "temperature": float(raw.get("temperature") or 1.0),
        "top_p": float(raw.get("top_p") or 1.0),
        "top_k": int(raw.get("top_k") or 0),
    }
