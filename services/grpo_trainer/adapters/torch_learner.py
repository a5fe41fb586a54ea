"""The learner of one session: a model, its optimizer, and a thread that they share with other sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import torch

from grpo_math.errors import GrpoMathError
from grpo_math.objective import build_objective
from grpo_math.packing import TrainingRow, pack
from grpo_trainer.adapters.optimization import StepOptions, optimize
from grpo_trainer.adapters.packed_model import PackedModel, load_model
from grpo_trainer.adapters.policy_export import export_policy
from grpo_trainer.adapters.rows import batch_rows
from grpo_trainer.adapters.tensor_files import load_tensors, save_tensors
from grpo_trainer.domain.errors import InvalidTrainingSpec, UnusableTrajectory
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.ports import BatchGroup, Canary, StepNumbers

T = TypeVar("T")

_CANARY_ROWS: Final = 8
_CANARY_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """How this process computes. device: a torch device; num_threads: of torch on CPU."""

    device: str = "cpu"
    num_threads: int = 2
    microbatch_tokens: int = 4096
    share_prefixes: bool = True


class LearnerThread:
    """The one thread in which torch works: sessions take turns, and the event loop stays free."""

    def __init__(self, options: LearnerOptions) -> None:
        self.options = options
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="learner", initializer=self._prepare)

    def _prepare(self) -> None:
        torch.set_num_threads(self.options.num_threads)

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` there, after what was asked earlier."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Let the running work finish, drop the rest."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class TorchLearner:
    """See ports.Learner."""

    def __init__(self, thread: LearnerThread) -> None:
        self._thread = thread
        self._spec: TrainingSpec | None = None
        self._model: PackedModel | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._step_options: StepOptions | None = None
        self._base: Path | None = None
        self._canary_rows: list[TrainingRow] = []

    async def begin(self, spec: TrainingSpec, base: Path) -> None:
        """See ports.Learner."""
        await self._thread.run(lambda: self._load(spec, base))

    async def resume(self, spec: TrainingSpec, base: Path, tensors: Path) -> None:
        """See ports.Learner."""

        def work() -> None:
            model, optimizer = self._load(spec, base)
            load_tensors(tensors, model.module, optimizer)

        await self._thread.run(work)

    def _load(self, spec: TrainingSpec, base: Path) -> tuple[PackedModel, torch.optim.Optimizer]:
        options = self._thread.options
        self._step_options = step_options(spec, options)
        torch.manual_seed(spec.seed)
        model = load_model(base, device=options.device)
        optimizer = new_optimizer(model, spec)
        self._spec, self._base, self._model, self._optimizer = spec, base, model, optimizer
        self._canary_rows = _random_rows(model, spec.seed)
        return model, optimizer

    def check(self, group: BatchGroup) -> None:
        """See ports.Learner."""
        model, _ = self._loaded()
        vocabulary, longest = model.module.config.vocab_size, model.module.config.max_position_embeddings
        for member in group.members:
            for context in member.tokens.contexts:
                ids, name = context.token_ids, member.tokens.trajectory_id
                if min(ids) < 0 or max(ids) >= vocabulary:
                    raise UnusableTrajectory(f"{name}: a token is not one of the model's {vocabulary}")
                if len(ids) > longest:
                    raise UnusableTrajectory(f"{name}: a row of {len(ids)} tokens, the model takes {longest}")

    async def step(self, groups: Sequence[BatchGroup]) -> StepNumbers:
        """See ports.Learner."""
        return await self._thread.run(lambda: self._step(groups))

    def _step(self, groups: Sequence[BatchGroup]) -> StepNumbers:
        if self._spec is None or self._model is None or self._optimizer is None or self._step_options is None:
            raise RuntimeError("the learner was not begun")
        rows = batch_rows(groups, advantage=self._spec.advantage, group_size=self._spec.group_size)
        longest = max((row.num_trained for row in rows), default=1)
        options = replace(self._step_options, max_row_tokens=longest)
        self._canary_rows = rows[:_CANARY_ROWS]
        values = optimize(self._model, self._optimizer, rows, options)
        return StepNumbers(values or {}, applied=values is not None)

    async def save(self, path: Path) -> None:
        """See ports.Learner."""
        model, optimizer = self._loaded()
        await self._thread.run(lambda: save_tensors(path, model.module, optimizer))

    async def export(self, directory: Path) -> None:
        """See ports.Learner."""
        model, _ = self._loaded()
        base = self._base
        if base is None:
            raise RuntimeError("the learner was not begun")
        await self._thread.run(lambda: export_policy(model.module, base, directory))

    async def canary(self) -> Canary:
        """See ports.Learner."""
        model, _ = self._loaded()
        return await self._thread.run(lambda: tuple(canary(model, self._canary_rows)))

    def _loaded(self) -> tuple[PackedModel, torch.optim.Optimizer]:
        if self._model is None or self._optimizer is None:
            raise RuntimeError("the learner was not begun")
        return self._model, self._optimizer

    async def close(self) -> None:
        """See ports.Learner."""
        self._model = self._optimizer = None
        self._canary_rows = []


def step_options(spec: TrainingSpec, options: LearnerOptions) -> StepOptions:
    """The objective of a run. Raises InvalidTrainingSpec for names and numbers that do not exist or do not
    fit."""
    try:
        objective = build_objective(spec.loss, spec.loss_config)
    except GrpoMathError as error:
        raise InvalidTrainingSpec(f"run {spec.run_id}: {error}") from error
    if objective.kl is not None:
        raise InvalidTrainingSpec(
            f"run {spec.run_id}: kl_coefficient needs a reference policy, which no run has yet"
        )
    return StepOptions(
        objective=objective,
        max_grad_norm=spec.max_grad_norm,
        microbatch_tokens=options.microbatch_tokens,
        share_prefixes=options.share_prefixes,
        clip_low=getattr(objective.loss, "clip_low", 0.2),
        clip_high=getattr(objective.loss, "clip_high", 0.28),
    )


def new_optimizer(model: PackedModel, spec: TrainingSpec) -> torch.optim.Optimizer:
    """AdamW with a constant learning rate."""
    return torch.optim.AdamW(
        model.module.parameters(),
        lr=spec.learning_rate,
        betas=(spec.adam_beta1, spec.adam_beta2),
        weight_decay=spec.weight_decay,
        fused=True,
    )


def _random_rows(model: PackedModel, seed: int) -> list[TrainingRow]:
    """Rows for the canary of a policy that has not trained on anything yet."""
    generator = torch.Generator().manual_seed(seed)
    shape = (_CANARY_ROWS, _CANARY_TOKENS)
    ids = torch.randint(model.module.config.vocab_size, shape, generator=generator)
    trained = torch.zeros(_CANARY_TOKENS, dtype=torch.bool)
    unknown = torch.zeros(_CANARY_TOKENS)
    return [TrainingRow(f"canary/{n}", "canary", row, trained, unknown, 0.0) for n, row in enumerate(ids)]


@torch.no_grad()
def canary(model: PackedModel, rows: Sequence[TrainingRow]) -> list[tuple[list[int], list[float]]]:
    """The first tokens of each row with their log-probabilities under the model, at temperature 1."""
    proofs = []
    for row in rows:
        ids = row.token_ids[:_CANARY_TOKENS]
        trained = torch.ones(ids.shape[0], dtype=torch.bool)
        trained[0] = False
        unknown = torch.zeros(ids.shape[0])
        probe = TrainingRow(row.row_id, row.group_id, ids, trained, unknown, advantage=0.0)
        logprobs, _ = model.logprobs(pack([probe]).to(model.device))
        proofs.append((ids.tolist(), [min(value, 0.0) for value in logprobs.tolist()]))
    return proofs
