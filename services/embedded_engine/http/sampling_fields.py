"""Fields of a body that say how tokens are drawn: checked, in vLLM's words, and made a `SamplingSpec`."""

import json
import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from embedded_engine.adjusting import Penalties
from embedded_engine.errors import BadRequest
from embedded_engine.http.bodies import SamplingBody
from embedded_engine.sampling import SamplingSpec

_MAX_LOGPROBS: Final = 20
_MAX_SEED: Final = 2**64
_MAX_BIAS: Final = 100.0
_MAX_PENALTY: Final = 2.0
_MAX_STOPS: Final = 64
"""Each token's text is searched for each of them."""
_MAX_TOP_K: Final = 2**31 - 1
"""No vocabulary is larger, so what is above it restricts nothing either."""
_MAX_DIGITS: Final = 10
"""Of a token id."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a policy's generation_config.json says."""

    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: frozenset[int]

    @classmethod
    def of(cls, directory: Path, stop_token_ids: frozenset[int]) -> "Defaults":
        """Those of a directory; vLLM's own where it says nothing."""
        path = directory / "generation_config.json"
        raw = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        temperature, top_p = float(raw.get("temperature") or 1.0), float(raw.get("top_p") or 1.0)
        return cls(temperature, top_p, int(raw.get("top_k") or 0), stop_token_ids)


def sampling_spec(
    body: SamplingBody, defaults: Defaults, *, logprobs: int | None, wanted: int, room: int
) -> SamplingSpec:
    """wanted: tokens asked for. room: what the prompt leaves of the context. Raises BadRequest."""
    if len(body.stops) > _MAX_STOPS:
        raise BadRequest(
            f"stop has {len(body.stops)} strings, at most {_MAX_STOPS} are searched for", param="stop"
        )
    own = frozenset[int]() if body.ignore_eos else defaults.stop_token_ids
    return SamplingSpec(
        max_tokens=min(wanted, room),
        seed=secrets.randbits(63) if body.seed is None else body.seed % _MAX_SEED,
        stop_token_ids=own | frozenset(body.stop_token_ids or ()),
        stop=body.stops,
        min_tokens=_min_tokens(body, wanted),
        num_top_logprobs=_count("logprobs", logprobs),
        num_prompt_logprobs=_count("prompt_logprobs", body.prompt_logprobs),
        **_distribution(defaults, body),
    )


def check_max_tokens(wanted: int, limit: int) -> None:
    """Raises BadRequest."""
    if wanted < 1:
        raise _refused("max_tokens", wanted, "must be at least 1")
    if wanted > limit:
        raise BadRequest(
            f"max_tokens={wanted} cannot be greater than max_model_len={limit}. Please request fewer "
            f"output tokens. (parameter=max_tokens, value={wanted})",
            param="max_tokens",
        )


def penalties_of(body: SamplingBody) -> Penalties:
    """Raises BadRequest."""
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(body, name)
        if value is not None and not -_MAX_PENALTY <= value <= _MAX_PENALTY:
            raise _refused(name, value, "must be in [-2, 2]")
    repetition = 1.0 if body.repetition_penalty is None else body.repetition_penalty
    if not 0 < repetition < math.inf:
        raise _refused("repetition_penalty", repetition, "must be greater than zero")
    return Penalties(repetition, body.frequency_penalty or 0.0, body.presence_penalty or 0.0)


def logit_bias_of(body: SamplingBody, vocab: int) -> dict[int, float]:
    """By token id. Raises BadRequest."""
    found: dict[int, float] = {}
    for name, value in (body.logit_bias or {}).items():
        is_id = name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS
        token = int(name) if is_id else -1
        if not 0 <= token < vocab:
            raise _refused("logit_bias", f"{name:.80}", f"must name token ids from 0 to {vocab - 1}")
        if not -_MAX_BIAS <= value <= _MAX_BIAS:
            raise _refused("logit_bias", value, "must hold numbers from -100 to 100")
        found[token] = value
    return found


def adjusted_by(body: SamplingBody) -> tuple[str, ...]:
    """The fields that make the tokens come from another distribution than the policy's own."""
    neutral: dict[str, tuple[Any, ...]] = {
        "presence_penalty": (None, 0),
        "frequency_penalty": (None, 0),
        "repetition_penalty": (None, 1),
        "logit_bias": (None, {}),
        "min_p": (None, 0),
        "min_tokens": (0,),
    }
    return tuple(name for name, values in neutral.items() if getattr(body, name) not in values)


def _min_tokens(body: SamplingBody, wanted: int) -> int:
    if body.min_tokens < 0:
        raise _refused("min_tokens", body.min_tokens, "must be greater than or equal to 0")
    if body.min_tokens > wanted:
        raise _refused("min_tokens", body.min_tokens, f"must be less than or equal to max_tokens={wanted}")
    return body.min_tokens


def _count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if value < 0:
        raise _refused(name, value, "must be non-negative")
    if value > _MAX_LOGPROBS:
        raise BadRequest(
            f"Requested sample {name} of {value}, which is greater than max allowed: {_MAX_LOGPROBS} "
            f"(parameter={name}, value={value})",
            param=name,
        )
    return value


def _distribution(defaults: Defaults, body: SamplingBody) -> dict[str, Any]:
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_p = defaults.top_p if body.top_p is None else body.top_p
    top_k = defaults.top_k if body.top_k is None else max(body.top_k, 0) if body.top_k >= -1 else -2
    min_p = body.min_p or 0.0
    if not 0 <= temperature < math.inf:
        raise _refused("temperature", temperature, "must be non-negative")
    if not 0 < top_p <= 1:
        raise _refused("top_p", top_p, "must be in (0, 1]")
    if top_k < 0:
        raise BadRequest(f"top_k must be 0 (disable), or at least 1, got {body.top_k}.", param="top_k")
    if not 0 <= min_p <= 1:
        raise _refused("min_p", min_p, "must be in [0, 1]")
    return {
        "temperature": float(temperature),
        "top_p": float(top_p),
        "top_k": min(int(top_k), _MAX_TOP_K),
        "min_p": float(min_p),
    }


def _refused(name: str, value: object, rule: str) -> BadRequest:
    return BadRequest(f"{name} {rule}, got {value}. (parameter={name}, value={value})", param=name)
