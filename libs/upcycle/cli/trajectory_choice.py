"""Flags of `upcycle trajectories list|export`: which trajectories."""

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from cyclopts import Parameter

from upcycle.errors import UpcycleError
from upcycle.local_runs import is_local_run
from upcycle.platform import Platform
from upcycle.session_labels import checked

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.service_pb2 import TrajectoryFilter

State = Literal[
    "recorded", "graded", "trained", "evaluated", "excluded", "failed", "cancelled", "client_graded"
]
FailureKind = Literal[
    "scenario_error",
    "context_overflow",
    "environment_broken",
    "environment_lost",
    "external_failure",
    "timeout",
    "engine_error",
    "sampler_error",
    "body_corrupt",
    "reward_invalid",
    "grader_error",
    "policy_unreadable",
    "context_spent",
    "tool_timeout",
    "process_ended",
    "answer_error",
]
_VERSION: Final = re.compile(r"v?(\d{1,18})")


class UnclearFilter(UpcycleError, ValueError):
    """A filter that no trajectory can pass; nothing was asked."""

    kind = "unclear_filter"


@Parameter(name="*", group="Which trajectories: all that are named must hold")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryChoice:
    """Without any: all trajectories."""

    run: str = ""
    """of this run (or `last`)."""
    model: str = ""
    """of this model."""
    task: str = ""
    """of the task with this slug."""
    family: str = ""
    """of tasks of this family."""
    min_reward: float | None = None
    """graded, with at least this reward."""
    max_reward: float | None = None
    """graded, with at most this reward."""
    failure: FailureKind | None = None
    """of episodes that ended with a failure of this kind."""
    version: str = ""
    """of which this version of the model, such as v14, sampled some tokens."""
    label: tuple[str, ...] = ()
    """of recorded sessions with this label, such as flow:refund; several: all of them."""
    state: State | None = None
    """where the ledger has them; client_graded, which no ledger counts, is listed by this flag alone, or by
    --run of an evaluation in one process (here-…)."""

    def check(self) -> None:
        """Raises UnclearFilter."""
        for flag, reward in (("--min-reward", self.min_reward), ("--max-reward", self.max_reward)):
            if reward is not None and not math.isfinite(reward):
                raise UnclearFilter(f"{flag} is {reward}", "give a reward, such as 0.5")
        if self.min_reward is not None and self.max_reward is not None and self.min_reward > self.max_reward:
            raise UnclearFilter(
                f"--min-reward {self.min_reward:g} is above --max-reward {self.max_reward:g}",
                "nothing is between: swap them",
            )
        if self.version and not _VERSION.fullmatch(self.version):
            raise UnclearFilter(f"--version {self.version!r} is no version", "give one such as v14")
        try:
            checked(self.label)
        except ValueError as error:
            raise UnclearFilter(f"--label: {error}", "give one such as flow:refund") from error

    def odd_rewards(self) -> str:
        """What to say of a bound outside 0 to 1; "" where none is."""
        bounds = (("--min-reward", self.min_reward), ("--max-reward", self.max_reward))
        beyond = [
            f"{flag} {reward:g}" for flag, reward in bounds if reward is not None and not 0 <= reward <= 1
        ]
        return (
            f"{' and '.join(beyond)}: only environments of others give rewards outside 0 to 1"
            if beyond
            else ""
        )

    async def to_wire(self, platform: Platform) -> "TrajectoryFilter":
        """With the id of the run. Raises NoSuchRun."""
        from upcycle.api.trajectory.v1.service_pb2 import TrajectoryFilter
        from upcycle.api.trajectory.v1.trajectory_pb2 import LedgerState
        from upcycle.cli.runs import resolve_run

        version = _VERSION.fullmatch(self.version)
        known = self.state or ("client_graded" if is_local_run(self.run) else "unspecified")
        return TrajectoryFilter(
            run_id=await resolve_run(platform, self.run) if self.run else "",
            model=self.model,
            task_slug=self.task,
            family=self.family,
            min_reward=self.min_reward,
            max_reward=self.max_reward,
            failure_kind=self.failure or "",
            version=int(version[1]) if version else None,
            labels=checked(self.label),
            state=LedgerState.Value(f"LEDGER_STATE_{known.upper()}"),
        )

    async def why_none(self, platform: Platform) -> str:
        """What to say where no trajectory is there. Raises NoSuchRun for a run that is not."""
        from upcycle.cli.runs import check_run

        if self.run and not is_local_run(self.run):
            await check_run(platform, self.run)
        return "no trajectory is like that" if self != ALL else "no trajectory is stored yet"


ALL: Final = TrajectoryChoice()
