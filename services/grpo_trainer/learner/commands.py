"""What rank 0 asks of every rank: a command is pickled, sent, and executed on the rank's own sessions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from grpo_math.packing import TrainingRow
from grpo_trainer.domain.following import UNSCALED, Scales
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.core import SessionCores
from grpo_trainer.learner.optimization import optimize
from grpo_trainer.learner.snapshots import HostSnapshot, WriterThread

Result_co = TypeVar("Result_co", covariant=True)


class RankCommand(Protocol[Result_co]):
    """One call that all ranks make, each with its own part of the data."""

    def execute(self, cores: SessionCores) -> Result_co:
        """Do it on this rank. Raises TrainerError where all ranks raise it."""


@dataclass(frozen=True, slots=True)
class Load:
    """Open a session on the weights in `base`, and on the saved `tensors` if there are some."""

    session: str
    spec: TrainingSpec
    base: Path
    tensors: Path | None

    def execute(self, cores: SessionCores) -> None:
        """Raises InvalidTrainingSpec."""
        cores.opened(self.session).load(self.spec, self.base, self.tensors)


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step on this rank's rows. canary_rows: the same for all ranks, at most CANARY_ROWS.
    drift_of: groups on which the divergence from the first policy is measured. scales: of rate and KL
    weight."""

    session: str
    rows: tuple[TrainingRow, ...]
    max_row_tokens: int
    canary_rows: tuple[TrainingRow, ...]
    drift_of: frozenset[str] = frozenset()
    scales: Scales = UNSCALED

    def execute(self, cores: SessionCores) -> dict[str, float] | None:
        """Metrics; None where nothing was left to learn. Raises Diverged, and then the rate stays."""
        core = cores.get(self.session)
        model, optimizer = core.loaded
        if core.step_options is None or core.rates is None:
            raise RuntimeError("the learner was not begun")
        core.canary_rows = self.canary_rows
        options = core.step_options.with_kl(self.scales.kl)
        with core.rates.scaled(self.scales.rate) as rate, core.random.active():
            measured = optimize(
                model, optimizer, self.rows, options, core.ranks, max_row_tokens=self.max_row_tokens
            )
        core.rates.step()
        if measured is None:
            return None
        drift = (
            core.drift([row for row in self.rows if row.group_id in self.drift_of]) if self.drift_of else {}
        )
        kl = options.objective.kl
        weight = {} if kl is None else {"kl_weight": kl.coefficient}
        return {**measured, **drift, **weight, "learning_rate": rate}


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Copy a session to the host. writer: rank 0 alone has one; the other ranks only help to gather."""

    session: str
    writer: WriterThread | None

    def execute(self, cores: SessionCores) -> HostSnapshot | None:
        """The copy on rank 0, None on the others."""
        return cores.get(self.session).snapshot(self.writer)


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Free the memory of a session."""

    session: str

    def execute(self, cores: SessionCores) -> None:
        """Nothing happens where the session was not begun."""
        cores.close(self.session)
