"""From the turns of an episode to training rows, by the extension property.

A turn's prompt extends all earlier tokens exactly, so one row holds the whole conversation; where it did
not (a compacted context), a new row begins. Observation, tool and template tokens are untrained; sampled
tokens, the stop token included, are trained. A turn whose completion could not be read is marked: it trains
where its credit is negative, so that it is unlearned, and is left out where it is not.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from grpo_trainer.domain.errors import Untrainable, UnusableTrajectory
from upcycle.api.trajectory.v1.trajectory_pb2 import Turn


@dataclass(slots=True)
class TokenRow:
    """One row, arrays of equal length L. logprobs: the sampler's, 0 where untrained; turns: index within
    the row. unreadable: turns of it that could not be read. first_turn: how many turns of the episode lie in
    rows before it.

    13 bytes a token, as the rows of all complete groups wait in memory: bodies have token ids of 32 bits and
    single-precision logprobs."""

    token_ids: array[int] = field(default_factory=lambda: array("i"))
    trained: bytearray = field(default_factory=bytearray)
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    turns: array[int] = field(default_factory=lambda: array("i"))
    unreadable: frozenset[int] = frozenset()
    first_turn: int = 0

    @classmethod
    def of(
        cls,
        token_ids: Iterable[int],
        trained: Iterable[bool],
        logprobs: Iterable[float],
        turns: Iterable[int],
    ) -> TokenRow:
        """The row with these values."""
        return cls(array("i", token_ids), bytearray(trained), array("f", logprobs), array("i", turns))

    def extend(self, turn: Turn, *, index: int, is_readable: bool = True) -> None:
        """Append a turn: prompt and inserted tokens untrained, sampled tokens trained."""
        prompt, sampled = len(turn.new_prompt_ids), len(turn.sampled_ids)
        inserted = range(turn.inserted_start, turn.inserted_start + turn.num_inserted)
        self.token_ids.extend([*turn.new_prompt_ids, *turn.sampled_ids])
        self.trained.extend([False] * prompt + [at not in inserted for at in range(sampled)])
        self.logprobs.extend([0.0] * prompt + list(turn.sampled_logprobs))
        self.turns.extend([index] * (prompt + sampled))
        if not is_readable:
            self.unreadable |= {index}

    def trimmed(self) -> TokenRow:
        """Without the tokens after the last trained one: nothing is learned from them."""
        end = self.trained.rfind(True) + 1
        return replace(
            self,
            token_ids=self.token_ids[:end],
            trained=self.trained[:end],
            logprobs=self.logprobs[:end],
            turns=self.turns[:end],
        )

    def without(self, turns: Collection[int]) -> TokenRow:
        """The row in which these turns are not trained."""
        if not turns:
            return self
        kept = bytearray(
            train and turn not in turns for train, turn in zip(self.trained, self.turns, strict=True)
        )
        logprobs = array("f", (lp if keep else 0.0 for lp, keep in zip(self.logprobs, kept, strict=True)))
        return replace(self, trained=kept, logprobs=logprobs, unreadable=frozenset()).trimmed()

    @property
    def readable(self) -> TokenRow:
        """Without its unreadable turns."""
        return self.without(self.unreadable)


@dataclass(frozen=True, slots=True)
class EpisodeTokens:
    """An episode's tokens in rows, and what else the trainer needs of its body."""

    trajectory_id: str
    rows: tuple[TokenRow, ...]
    temperature: float
    oldest_version: int
    newest_version: int
    num_turns: int

    @property
    def num_unreadable(self) -> int:
        """Turns that could not be read."""
        return sum(len(row.unreadable) for row in self.rows)

    @property
    def num_trained(self) -> int:
        return sum(sum(row.trained) for row in self.rows)

    @property
    def untrained(self) -> EpisodeTokens:
        """The episode of which no token trains: its reward is compared with the others' all the same."""
        return replace(self, rows=())


def episode_tokens(
    trajectory_id: str, turns: Sequence[Turn], *, temperature: float, train_parse_errors: bool
) -> EpisodeTokens:
    """The rows of an episode. Raises UnusableTrajectory where the arrays cannot be what was sampled."""
    if temperature == 0:
        raise Untrainable(
            f"{trajectory_id}: sampled greedily, at temperature 0; ratios need a temperature > 0"
        )
    if not temperature > 0:
        raise UnusableTrajectory(
            f"{trajectory_id}: sampled at temperature {temperature:g}; ratios need a temperature > 0"
        )
    rows: list[TokenRow] = []
    within = 0
    for number, turn in enumerate(turns):
        _check_turn(trajectory_id, number, turn)
        if turn.restarts_context or not rows:
            rows.append(TokenRow(first_turn=number))
            within = 0
        rows[-1].extend(turn, index=within, is_readable=train_parse_errors or not turn.parse_error)
        within += 1
    if turns and not any(turn.sampled_ids for turn in turns):
        raise Untrainable(
            f"{trajectory_id}: holds no tokens: no policy of ours sampled it, so none can learn"
        )
    versions = [span.version for turn in turns for span in turn.versions if span.num_tokens]
    trimmed = tuple(row for row in (each.trimmed() for each in rows) if row.token_ids)
    if not versions or any(row.trained[0] for row in trimmed):
        raise UnusableTrajectory(
            f"{trajectory_id}: a row begins with a prompt, and a policy must have sampled"
        )
    return EpisodeTokens(trajectory_id, trimmed, temperature, min(versions), max(versions), len(turns))


def row_counts(episodes: Iterable[EpisodeTokens]) -> dict[str, float]:
    """Metrics of a batch: context_forks, rows that an episode has beyond its first; unreadable_turns, and
    their share of all turns."""
    counts = {"context_forks": 0.0, "unreadable_turns": 0.0}
    num_turns = 0
    for episode in episodes:
        counts["context_forks"] += max(len(episode.rows) - 1, 0)
        counts["unreadable_turns"] += episode.num_unreadable
        num_turns += episode.num_turns
    return {**counts, "unreadable_fraction": counts["unreadable_turns"] / max(num_turns, 1)}


def _check_turn(trajectory_id: str, number: int, turn: Turn) -> None:
    sampled = len(turn.sampled_ids)
    if len(turn.sampled_logprobs) != sampled:
        raise UnusableTrajectory(
            f"{trajectory_id} turn {number}: {sampled} sampled ids and {len(turn.sampled_logprobs)} logprobs"
        )
    if sum(span.num_tokens for span in turn.versions) != sampled:
        raise UnusableTrajectory(
            f"{trajectory_id} turn {number}: versions do not cover its {sampled} sampled tokens"
        )
    if any(lp > 1e-3 for lp in turn.sampled_logprobs if math.isfinite(lp)):
        raise UnusableTrajectory(f"{trajectory_id} turn {number}: a logprob is above 0, so it is none")
