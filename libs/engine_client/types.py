"""What goes into a generation and what comes out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class FinishReason(StrEnum):
    """Why sampling ended. An abort is not a reason: it raises GenerationAborted."""

    STOP = "stop"
    """A stop token was sampled; it is the last of `token_ids`."""
    LENGTH = "length"
    """`max_tokens` or the model's context was used up."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample; checked here, so that a bad value fails before any request is sent."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    seed: int | None = None
    """None: the client draws a fresh one, for engines that share a seed repeat each other's samples."""
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's own end-of-turn tokens."""
    ignore_eos: bool = False
    """Sample on after an end of turn: for load tests."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, expected at least 1")
        if not 0.0 <= self.temperature <= 100.0:
            raise ValueError(f"temperature is {self.temperature}, expected 0 (greedy) to 100")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}, expected above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, expected 0 (no limit) or more")


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Sampled tokens start..end (end excluded) of one generation, all made by one policy version."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion, token for token; nothing else lies between engine JSON and stored turn."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per token id: its log-probability under the distribution it was drawn from (temperature, top-k and
    top-p applied), by the weights that drew it. Greedy: the unscaled distribution."""
    finish_reason: FinishReason
    version_spans: tuple[TokenSpan, ...]
    """Contiguous, in order, covering every token id."""
    spans_are_exact: bool = True
    """False: the engine cannot say where the version changed; one span carries the older version."""
    engine_id: str = ""
    """Lease of the engine that sampled it; empty unless the caller fills it in."""
    weights_digests: Mapping[int, str] = field(default_factory=dict)
    """Digest of the weights of each version in `version_spans`; empty unless the caller fills it in."""


def continued(first: Completion, inserted: Sequence[int], second: Completion) -> Completion:
    """Both as one completion, with `inserted` between them: logprob 0, and of the version sampled before."""
    begin = len(first.token_ids) + len(inserted)
    spans = [replace(span, start=begin + span.start, end=begin + span.end) for span in second.version_spans]
    return replace(
        second,
        token_ids=(*first.token_ids, *inserted, *second.token_ids),
        logprobs=(*first.logprobs, *[0.0] * len(inserted), *second.logprobs),
        version_spans=(*first.version_spans[:-1], replace(first.version_spans[-1], end=begin), *spans),
        spans_are_exact=first.spans_are_exact and second.spans_are_exact,
        weights_digests={**first.weights_digests, **second.weights_digests},
    )


@dataclass(frozen=True, slots=True)
class StagedScores:
    """Log-probabilities (temperature 1, in nats) of row[1:] for each row: by weights that an engine keeps
    ready, and by those that serve."""

    staged: Sequence[Sequence[float]]
    serving: Sequence[Sequence[float]]
