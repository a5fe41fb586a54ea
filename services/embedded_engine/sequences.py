"""One sequence being sampled: its tokens, what was drawn when, and how it ended."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from embedded_engine.adjusting import Adjustment
from embedded_engine.sampling import SamplingSpec, TopLogprobs

STOP, LENGTH, ABORT, ERROR = "stop", "length", "abort", "error"


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step added to a sequence; the final one when `finish_reason` is set."""

    num_tokens: int
    """Tokens sampled so far."""
    finish_reason: str | None


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the decode thread until it is finished; the HTTP side only reads what `Progress` covers."""

    prompt: list[int]
    spec: SamplingSpec
    listener: Callable[[Progress], None] = lambda _: None
    """Called in the event loop: at the end, and after each step when `streams`."""
    adjustments: tuple[Adjustment, ...] = ()
    """What changes the scores of its next token."""
    streams: bool = False
    tokens: list[int] = field(default_factory=list)
    """Prompt, then sampled ids."""
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TopLogprobs] = field(default_factory=list)
    """Per prompt token after the first: the top tokens, with the prompt token's own logprob in front."""
    spans: list[tuple[str, int]] = field(default_factory=list)
    """(weight version label, index of the first sampled token under it), in order."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    at_fault: str | None = None
    """With `error`: the field of the request that cannot be followed; None: the engine failed."""
    num_cached: int = 0
    slot: int = -1
    computed: int = 0
    """Tokens whose keys and values are in the slot."""
    scored: int = 0
    """Prompt positions whose logprobs are recorded."""
    created_s: float = field(default_factory=time.monotonic)
    first_token_s: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def num_sampled(self) -> int:
        """Tokens drawn so far."""
        return len(self.logprobs)

    @property
    def sampled(self) -> list[int]:
        """The ids sampled so far."""
        return self.tokens[len(self.prompt) :]

    def append(self, token: int, logprob: float, label: str) -> None:
        """Record a drawn token with the label of the weights that drew it."""
        if not self.spans or self.spans[-1][0] != label:
            self.spans.append((label, len(self.logprobs)))
        if not self.logprobs:
            self.first_token_s = time.monotonic()
        self.tokens.append(token)
        self.logprobs.append(logprob)

    def forget_sampled(self, reason: str) -> None:
        """Leave the prompt alone of a sequence that has ended."""
        del self.tokens[len(self.prompt) :]
        for found in (self.logprobs, self.tops, self.spans):
            found.clear()
        self.finish_reason, self.stop_reason = reason, None

    def version_spans(self) -> list[dict[str, object]]:
        """vLLM's `weight_versions`: contiguous [start, end) with the label of each."""
        ends = [*(start for _, start in self.spans), self.num_sampled][1:]
        return [
            {"version": label, "start": start, "end": end}
            for (label, start), end in zip(self.spans, ends, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Part:
    """Sampled tokens start..end of a sequence, as one progress reported them.

    The decode thread may be further already; a reply must be cut from one consistent view.
    """

    sequence: Sequence
    start: int
    end: int
    finish_reason: str | None

    @classmethod
    def whole(cls, sequence: Sequence) -> "Part":
        """All of a finished sequence."""
        return cls(sequence, 0, sequence.num_sampled, sequence.finish_reason)

    @property
    def token_ids(self) -> list[int]:
        """The part's ids."""
        first = self.sequence.num_prompt
        return self.sequence.tokens[first + self.start : first + self.end]

    @property
    def so_far(self) -> list[int]:
        """All sampled ids up to the part's end."""
        first = self.sequence.num_prompt
        return self.sequence.tokens[first : first + self.end]

    @property
    def logprobs(self) -> list[float]:
        """One per id of the part."""
        return self.sequence.logprobs[self.start : self.end]

    def likeliest(self, offset: int) -> list[tuple[int, float]]:
        """The likeliest tokens at the part's `offset`-th id, as far as they were asked for."""
        if not self.sequence.spec.num_top_logprobs:
            return []
        top = self.sequence.tops[self.start + offset]
        return list(zip(top.token_ids, (max(value, -9999.0) for value in top.logprobs), strict=True))
