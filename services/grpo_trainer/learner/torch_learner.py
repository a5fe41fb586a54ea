"""The learner of one session: computes in a thread, and on ranks, that it shares with other sessions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from grpo_math.packing import TrainingRow, rank_shares
from grpo_trainer.domain.errors import UnusableTrajectory
from grpo_trainer.domain.following import UNSCALED, Scales
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.commands import Load, Step, TakeSnapshot
from grpo_trainer.learner.core import CANARY_ROWS, LearnerOptions, canary, new_optimizer
from grpo_trainer.learner.drift import measured_groups
from grpo_trainer.learner.memory import memory_for
from grpo_trainer.learner.packed_model import PackedModel
from grpo_trainer.learner.protocol import BatchGroup, StepNumbers
from grpo_trainer.learner.rank_group import RankGroup
from grpo_trainer.learner.rows import Credit, batch_rows
from grpo_trainer.learner.snapshots import HostSnapshot, WriterThread
from upcycle.run_config.names import BY_TURN

__all__ = ["LearnerOptions", "LearnerThread", "TorchLearner", "canary", "new_optimizer"]

T = TypeVar("T")

_NUMBERS: Final = itertools.count(1)
"""Sessions of this process, so that ranks can tell them apart."""


class LearnerThread:
    """The one thread in which torch works: sessions take turns, and the event loop stays free."""

    def __init__(
        self, options: LearnerOptions, *, computing: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """computing: entered in the thread around each piece of work."""
        self.options = options
        self._computing = computing
        self.writer = WriterThread()
        self.group = RankGroup(options)
        self.bases: dict[str, str] = {}
        """Names of the directories that the open sessions were loaded from, by session."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="learner", initializer=self._prepare)

    def _prepare(self) -> None:
        torch.set_num_threads(self.options.num_threads)

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` there, after what was asked earlier."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._watched, work)

    def _watched(self, work: Callable[[], T]) -> T:
        with self._computing():
            return work()

    async def stop(self) -> None:
        """As `close`, for the service that owns the thread."""
        self.close()

    def close(self) -> None:
        """Let the running work finish, drop the rest."""
        self._executor.submit(self.group.close)
        self._executor.shutdown(wait=True)
        self.writer.close()


def misfit(config: Any, token_ids: Sequence[int]) -> str | None:
    """Why a model of this configuration cannot take a row; None where it can."""
    if min(token_ids) < 0 or max(token_ids) >= config.vocab_size:
        return f"a token is not one of the model's {config.vocab_size}"
    if len(token_ids) > config.max_position_embeddings:
        return f"a row of {len(token_ids)} tokens, the model takes {config.max_position_embeddings}"
    return None


def credit_of(spec: TrainingSpec) -> Credit:
    """How the run gives credit."""
    discount = spec.turn_discount if spec.turn_credit == BY_TURN else None
    return Credit(spec.advantage, discount, spec.turn_reward_weight, spec.has_batch_baseline)


class TorchLearner:
    """Model, optimizer and random state of one session; heavy work happens in its own thread."""

    def __init__(self, thread: LearnerThread) -> None:
        self._thread = thread
        self._session = f"session-{next(_NUMBERS)}"
        self._spec: TrainingSpec | None = None
        self._config: Any = None

    async def begin(self, spec: TrainingSpec, base: Path) -> None:
        """Fresh optimizer on the weights in `base`, a HF directory. Raises InvalidTrainingSpec,
        OutOfMemory."""
        await self._load(spec, base, None)

    async def resume(self, spec: TrainingSpec, base: Path, tensors: Path) -> None:
        """As it was when the folder `tensors` was saved. Raises BrokenArtifact, OutOfMemory."""
        await self._load(spec, base, tensors)

    async def _load(self, spec: TrainingSpec, base: Path, tensors: Path | None) -> None:
        self._thread.bases[self._session] = base.name
        command = Load(self._session, spec, base, tensors)
        with memory_for(f"model {spec.model!r} does not fit in memory"):
            await self._thread.run(
                partial(self._thread.group.execute, [command] * self._thread.options.ranks)
            )
        self._spec, self._config = spec, self._loaded()[0].module.config

    def check(self, group: BatchGroup) -> None:
        """Raises UnusableTrajectory where this model cannot take the tokens."""
        if self._config is None:
            raise RuntimeError("the learner was not begun")
        for rollout in group.rollouts:
            for row in rollout.rows:
                if (why := misfit(self._config, row.token_ids)) is not None:
                    raise UnusableTrajectory(f"{rollout.trajectory_id}: {why}")

    async def step(self, groups: Sequence[BatchGroup], scales: Scales = UNSCALED) -> StepNumbers:
        """One optimizer step. Raises Diverged with the weights untouched, OutOfMemory."""
        with memory_for(f"a step of {len(groups)} groups does not fit in memory"):
            return await self._thread.run(lambda: self._stepped(groups, scales))

    def _stepped(self, groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
        if self._spec is None:
            raise RuntimeError("the learner was not begun")
        batch = batch_rows(groups, credit=credit_of(self._spec), group_size=self._spec.group_size)
        commands = self._step_commands(batch.rows, self._spec.drift_groups, scales)
        values = self._thread.group.execute(commands)
        beside = {"masked_turns": float(batch.num_masked)}
        return StepNumbers(beside | (values or {}), applied=values is not None)

    def _step_commands(self, rows: Sequence[TrainingRow], num_measured: int, scales: Scales) -> list[Step]:
        """What each rank computes."""
        options = self._thread.options
        longest = max((row.num_trained for row in rows), default=1)
        parts = [list(rows)]
        if options.ranks > 1:
            parts = rank_shares(rows, options.ranks, share_prefixes=options.share_prefixes)
        canary_rows = tuple(rows[:CANARY_ROWS])
        drift_of = measured_groups({row.group_id for row in rows}, num_measured)
        return [Step(self._session, tuple(part), longest, canary_rows, drift_of, scales) for part in parts]

    async def snapshot(self) -> HostSnapshot:
        """The session as it is now, copied to the host. Raises OutOfMemory."""
        writers = [self._thread.writer, *[None] * (self._thread.options.ranks - 1)]
        commands = [TakeSnapshot(self._session, writer) for writer in writers]
        with memory_for("the host copy of a step does not fit in memory"):
            taken = await self._thread.run(partial(self._thread.group.execute, commands))
        if taken is None:
            raise RuntimeError("rank 0 has a writer, and took no snapshot")
        return taken

    def _loaded(self) -> tuple[PackedModel, torch.optim.Optimizer]:
        """Model and optimizer of this rank."""
        return self._thread.group.core(self._session).loaded

    async def close(self) -> None:
        """Free the model's memory."""
        self._config = None
        await self._thread.run(lambda: self._thread.group.close_session(self._session))
        self._thread.bases.pop(self._session, None)
