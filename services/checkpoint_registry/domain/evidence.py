"""Evidence: what a version was seen to do on the tasks of one held-out taskset."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Tally:
    """Graded attempts at one task. missing: attempts that ended without a grade."""

    family: str
    successes: int
    attempts: int
    missing: int = 0

    @property
    def rate(self) -> float:
        """Share of attempts that succeeded."""
        return self.successes / self.attempts


@dataclass(frozen=True, slots=True)
class SamplingProfile:
    """How a policy was sampled, without the seed: evidence under different profiles is not comparable."""

    temperature: float
    top_p: float
    max_turns: int
    max_tokens_per_turn: int
    max_tokens_per_episode: int
    thinking: str = ""

    def key(self) -> str:
        """Canonical text, equal for equal profiles."""
        return (
            f"t{self.temperature:g}/p{self.top_p:g}/n{self.max_turns}"
            f"/k{self.max_tokens_per_turn}/e{self.max_tokens_per_episode}"
            f"{f'/think-{self.thinking}' if self.thinking else ''}"
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One finished evaluation run, reduced to tallies by task slug. source_digest: of the code that judged
    it; "" where it is not known. Runs that different code judged are not comparable."""

    run_id: str
    checkpoint_id: str
    taskset: str
    taskset_digest: str
    profile_key: str
    num_tasks: int  # of the run, graded or not
    tallies: Mapping[str, Tally]
    finished_at: datetime
    source_digest: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything known of one checkpoint on one taskset: its evaluations added up. source_digest: of the code
    that judged all of them."""

    checkpoint_id: str
    run_ids: tuple[str, ...]  # oldest first
    num_tasks: int
    tallies: Mapping[str, Tally]
    source_digest: str = ""

    @property
    def attempts(self) -> int:
        """Graded episodes."""
        return sum(tally.attempts for tally in self.tallies.values())


def combine(checkpoint_id: str, evaluations: Iterable[Evaluation], source_digest: str = "") -> Evidence:
    """Adds those evaluations of one checkpoint that this source judged up by task, oldest first."""
    judged = [evaluation for evaluation in evaluations if evaluation.source_digest == source_digest]
    runs = sorted(judged, key=lambda evaluation: (evaluation.finished_at, evaluation.run_id))
    tallies: dict[str, Tally] = {}
    for run in runs:
        for slug, tally in run.tallies.items():
            before = tallies.get(slug, Tally(tally.family, 0, 0))
            tallies[slug] = Tally(
                tally.family,
                before.successes + tally.successes,
                before.attempts + tally.attempts,
                before.missing + tally.missing,
            )
    num_tasks = max((run.num_tasks for run in runs), default=0)
    return Evidence(checkpoint_id, tuple(run.run_id for run in runs), num_tasks, tallies, source_digest)
