"""One served policy: its weights, its cache, and the continuous batch of its sequences.

Each `step` admits what waits, computes one bounded chunk of prompts for several sequences at once, and draws
one token for every sequence whose prompt is complete. Sequences join and leave between steps.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch

from embedded_engine.decoder import Batch, DecoderModel, KeyValueCache, decode_attention
from embedded_engine.errors import BadRequest
from embedded_engine.kv_slots import KvSlots
from embedded_engine.sampling import SamplingTable, TopLogprobs
from embedded_engine.scoring import pass_over, score
from embedded_engine.sequences import ABORT, ERROR, LENGTH, STOP, Sequence
from embedded_engine.weights import ModelWeights
from engine_client.labels import NO_VERSION


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Sizes of a runner."""

    max_running: int = 128
    max_len: int = 2048
    chunk_tokens: int = 512
    """Prompt tokens computed between two decode steps."""
    num_slots: int = 192
    """Cache rows; those beyond `max_running` only hold finished sequences."""


@dataclass(slots=True)
class RunnerCounts:
    """Totals since start, for /metrics."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    steps: int = 0


class ModelRunner:
    """Used by the decode thread only."""

    def __init__(
        self, weights: ModelWeights, limits: RunnerLimits, decode_text: Callable[[list[int]], str]
    ) -> None:
        self.limits = limits
        self.label = NO_VERSION
        self.counts = RunnerCounts()
        self.model = DecoderModel(weights, limits.max_len)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        self._decode_text = decode_text
        self._cache = KeyValueCache(weights.config, limits.num_slots, limits.max_len, weights.device)
        self._kv_slots = KvSlots(limits.num_slots, limits.max_len)
        self._sampling = SamplingTable(limits.num_slots)
        self._last_token = np.zeros(limits.num_slots, dtype=np.int64)
        self._drawn = np.zeros(limits.num_slots, dtype=np.int64)
        self._epoch = 0
        self._touched: list[Sequence] = []
        self._any_minimum = False
        self._num_adjusted = 0
        """Running sequences with adjustments: without any, a step does nothing for them."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._any_minimum = self._any_minimum or sequence.spec.min_tokens > 0
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> bool:
        """End a sequence early; False when it had ended already."""
        if sequence.finish_reason is not None:
            return False
        if sequence.slot < 0:
            self.waiting.remove(sequence)
        self._finish(sequence, ABORT)
        return True

    def abort_all(self) -> None:
        """End every sequence early."""
        for sequence in [*self.running.values(), *self.waiting]:
            self.abort(sequence)

    def reload(self, weights: ModelWeights) -> None:
        """Other weights from the next step on. Running sequences keep the keys and values that they have."""
        self.use(DecoderModel(weights, self.limits.max_len))

    def use(self, model: DecoderModel) -> None:
        """As `reload`, with weights that are ready to run."""
        self.model = model
        self._epoch += 1
        self._kv_slots.mark_mixed(self._epoch)

    def reset_prefix_cache(self, *, recompute_running: bool) -> None:
        """Forget what finished sequences left; optionally let running ones compute theirs again."""
        self._kv_slots.forget(owned_too=recompute_running)
        if recompute_running:
            for sequence in self.running.values():
                sequence.computed = 0
                self._kv_slots.epoch[sequence.slot] = self._epoch
                self._kv_slots.planned[sequence.slot] = len(sequence.tokens)

    def step(self, *, admit: bool = True) -> list[Sequence]:
        """One round; returns the sequences that got a token or ended."""
        self._touched = []
        if admit:
            self._admit()
        prefilling: list[Sequence] = []
        decoding: list[Sequence] = []
        for sequence in self.running.values():
            pending = len(sequence.tokens) - sequence.computed
            (decoding if pending == 1 else prefilling).append(sequence)
        if prefilling:
            self._prefill(prefilling)
        if decoding:
            self._decode(decoding)
        self.counts.steps += 1
        return self._touched

    def drain_touched(self) -> list[Sequence]:
        """Sequences that ended outside of `step` (aborts)."""
        touched, self._touched = self._touched, []
        return touched

    def score(self, rows: list[list[int]]) -> list[list[float]]:
        """Log-probabilities (temperature 1) of row[1:] given their prefixes; uses no slot of the cache."""
        return score(self.model, rows)

    def _admit(self) -> None:
        """Give slots to waiting sequences in order; one that is deferred does not hold up those behind it."""
        for _ in range(len(self.waiting)):
            if len(self.running) >= self.limits.max_running:
                return
            sequence = self.waiting.popleft()
            reuse = sequence.spec.num_prompt_logprobs is None
            placement = self._kv_slots.place(sequence, self._epoch, reuse=reuse)
            if placement is None:
                self.waiting.append(sequence)
                continue
            if placement.copy_from is not None:
                self._cache.copy_prefix(placement.copy_from, placement.slot, placement.num_cached)
            self._kv_slots.take(sequence, placement, self._epoch)
            self._cache.begin(placement.slot, placement.num_cached)
            self._sampling.set(placement.slot, sequence.spec)
            self._drawn[placement.slot] = 0
            self._last_token[placement.slot] = sequence.tokens[-1]
            sequence.num_cached = sequence.computed = placement.num_cached
            self.running[placement.slot] = sequence
            self._num_adjusted += bool(sequence.adjustments)
            self.counts.prompt_tokens += sequence.num_prompt
            self.counts.cached_tokens += placement.num_cached

    def _prefill(self, sequences: list[Sequence]) -> None:
        """Compute up to `chunk_tokens` pending tokens, oldest first; draw where a prompt completes."""
        budget = self.limits.chunk_tokens
        chosen: list[Sequence] = []
        chunks: list[list[int]] = []
        for sequence in sequences:
            chunk = sequence.tokens[sequence.computed : sequence.computed + budget]
            chosen.append(sequence)
            chunks.append(chunk)
            budget -= len(chunk)
            if budget <= 0:
                break
        slots = [sequence.slot for sequence in chosen]
        starts = [sequence.computed for sequence in chosen]
        hidden = pass_over(self.model, self._cache, slots, starts, chunks)
        ends = np.cumsum([len(chunk) for chunk in chunks])
        for sequence, start, chunk, end in zip(chosen, starts, chunks, ends, strict=True):
            done = sequence.computed = start + len(chunk)
            self._kv_slots.kv_len[sequence.slot] = done
            self._kv_slots.tokens[sequence.slot, start:done] = chunk
            self._cache.extend(sequence.slot, start, done)
            if sequence.spec.num_prompt_logprobs is not None:
                self._score_prompt(sequence, start, hidden[int(end) - len(chunk) : int(end)])
        complete = [i for i, s in enumerate(chosen) if s.computed == len(s.tokens)]
        if complete:
            self._draw([chosen[i] for i in complete], hidden[self._cache.tensor(ends[complete] - 1)])

    def _decode(self, sequences: list[Sequence]) -> None:
        """One token for each sequence whose last token is the only one without keys and values."""
        sequences.sort(key=_slot_of)
        slots = np.fromiter((s.slot for s in sequences), dtype=np.int64, count=len(sequences))
        positions = self._kv_slots.kv_len[slots]
        tokens = self._last_token[slots]
        self._cache.extend_each(slots, positions)
        on_device = self._cache.tensor
        attend = decode_attention(slots, int(positions.max()) + 1, self._cache)
        batch = Batch(
            on_device(tokens), on_device(positions), self._cache.write_index(slots, positions), attend
        )
        hidden = self.model.hidden(batch, self._cache)
        self._kv_slots.tokens[slots, positions] = tokens
        self._kv_slots.kv_len[slots] = positions + 1
        for sequence in sequences:
            sequence.computed += 1
        self._draw(sequences, hidden)

    def _draw(self, sequences: list[Sequence], hidden: torch.Tensor) -> None:
        slots = np.fromiter((s.slot for s in sequences), dtype=np.int64, count=len(sequences))
        banned = self._banned(sequences) if self._any_minimum else ()
        logits = self.model.logits(hidden)
        if self._num_adjusted:
            self._adjust(sequences, logits)
        sampled = self._sampling.sample(logits, slots, self._drawn[slots], banned)
        self._drawn[slots] += 1
        self._last_token[slots] = sampled.token_ids
        self.counts.sampled_tokens += len(sequences)
        for row, sequence in enumerate(sequences):
            token, logprob = sampled.token_ids[row], sampled.logprobs[row]
            if sequence.at_fault is not None:
                self._finish(sequence, ERROR)
                continue
            if math.isnan(logprob):
                self._cannot_draw(sequence, hidden[row])
                continue
            if sequence.spec.num_top_logprobs:
                sequence.tops.append(sampled.top(row, sequence.spec.num_top_logprobs))
            sequence.append(token, logprob, self.label)
            if sequence.adjustments and not self._accept(sequence, token):
                self._finish(sequence, ERROR)
                continue
            self._after_token(sequence, token)

    def _adjust(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        """Change the rows of sequences that ask for it; the draw of one that cannot go on is not used."""
        for row, sequence in enumerate(sequences):
            try:
                for adjustment in sequence.adjustments:
                    adjustment.apply(logits[row])
            except BadRequest as error:
                sequence.error, sequence.at_fault = str(error), error.param

    def _accept(self, sequence: Sequence, token: int) -> bool:
        """False: the sequence cannot go on behind the token."""
        try:
            for adjustment in sequence.adjustments:
                adjustment.accept(token)
        except BadRequest as error:
            sequence.error, sequence.at_fault = str(error), error.param
        return sequence.at_fault is None

    def _banned(self, sequences: list[Sequence]) -> list[tuple[int, ...]]:
        """Stop tokens of sequences that have not reached their minimum length."""
        return [s.spec.named_stop_ids if s.num_sampled < s.spec.min_tokens else () for s in sequences]

    def _after_token(self, sequence: Sequence, token: int) -> None:
        spec = sequence.spec
        if token in spec.stop_token_ids:
            sequence.stop_reason = token
            self._finish(sequence, STOP)
        elif spec.stop and (found := self._stop_text(sequence)) is not None:
            sequence.stop_reason = found
            self._finish(sequence, STOP)
        elif len(sequence.logprobs) >= spec.max_tokens or len(sequence.tokens) >= self.limits.max_len:
            self._finish(sequence, LENGTH)
        else:
            self._touched.append(sequence)

    def _stop_text(self, sequence: Sequence) -> str | None:
        """As vLLM: text of the least tokens is not searched, but may hold the beginning of a stop string."""
        spec = sequence.spec
        if sequence.num_sampled <= spec.min_tokens:
            return None
        text = self._decode_text(sequence.sampled)
        before = len(self._decode_text(sequence.sampled[: spec.min_tokens])) if spec.min_tokens else 0
        return next(
            (stop for stop in spec.stop if text.find(stop, max(0, before - len(stop) + 1)) >= 0), None
        )

    def _finish(self, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        if sequence.slot >= 0:
            self._kv_slots.release(sequence)
            del self.running[sequence.slot]
            self._num_adjusted -= bool(sequence.adjustments)
        self._touched.append(sequence)

    def _cannot_draw(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """The weights are broken; or they are not, and what the request changes leaves no distribution."""
        changed_by = sequence.spec.adjusted_by
        if changed_by and bool(torch.isfinite(self.model.logits(hidden.unsqueeze(0))).all()):
            sequence.at_fault = changed_by[0]
            sequence.error = (
                f"{' and '.join(changed_by)} leave no token to draw after {sequence.num_sampled} tokens: "
                "choose less extreme values"
            )
            self._finish(sequence, ERROR)
        else:
            self._fail(sequence, "the weights produce values that are not finite")

    def _fail(self, sequence: Sequence, why: str) -> None:
        sequence.error = why
        slot = sequence.slot
        self._finish(sequence, ERROR)
        # A cache row with NaN in it would leak through masks: zero weight times NaN is NaN.
        self._kv_slots.kv_len[slot] = 0
        self._cache.data[:, :, slot].zero_()

    def _score_prompt(self, sequence: Sequence, start: int, hidden: torch.Tensor) -> None:
        """Record logprobs of the prompt tokens that follow the positions just computed."""
        following = sequence.prompt[start + 1 : start + 1 + hidden.shape[0]]
        if not following or sequence.scored >= start + len(following):
            return
        count = sequence.spec.num_prompt_logprobs or 0
        distribution = torch.log_softmax(self.model.logits(hidden[: len(following)]), dim=-1)
        for row, token in enumerate(following):
            value = float(distribution[row, token])
            top = torch.topk(distribution[row], min(count, distribution.shape[1]))
            rank = int((distribution[row] > value).sum()) + 1
            sequence.prompt_logprobs.append(
                TopLogprobs([token, *top.indices.tolist()], [value, *top.values.tolist()], rank)
            )
        sequence.scored = start + len(following)


_slot_of = attrgetter("slot")
