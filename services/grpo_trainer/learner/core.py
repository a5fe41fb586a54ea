"""What one rank holds of a session: model, optimizer, schedule, random state. All ranks call it alike."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from grpo_math.advantages import AGGREGATION_OF
from grpo_math.aggregation import DEFAULT_AGGREGATION
from grpo_math.objective import KlChoice, build_objective
from grpo_math.packing import TrainingRow, pack
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.adapter_export import export_adapter
from grpo_trainer.learner.drift import drift_kl
from grpo_trainer.learner.lora import AdaptedModel, Bases, merged_state
from grpo_trainer.learner.memory import is_out_of_memory
from grpo_trainer.learner.optimization import StepOptions
from grpo_trainer.learner.packed_model import ModelOptions, PackedModel, load_model
from grpo_trainer.learner.policy_export import export_policy
from grpo_trainer.learner.prepared import LossSpec
from grpo_trainer.learner.random_state import RandomState
from grpo_trainer.learner.ranks import ALONE, Ranks
from grpo_trainer.learner.rate_schedule import RateSchedule
from grpo_trainer.learner.snapshots import Export, HostSnapshot, WriterThread, host_state
from grpo_trainer.learner.tensor_files import host_copy, load_tensors, read_state, weights_of

log = logging.getLogger(__name__)

CANARY_ROWS: Final = 8
_CANARY_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """How this process computes. device: a torch device; num_threads: of torch on CPU, per rank; ranks:
    processes that share every step; rank_deadline_s: how long one waits for another; rank_variables: names of
    variables that they get beside the usual ones."""

    device: str = "cpu"
    num_threads: int = 2
    microbatch_tokens: int = 8192
    share_prefixes: bool = True
    model: ModelOptions = field(default_factory=ModelOptions)
    ranks: int = 1
    rank_deadline_s: float = 600.0
    rank_variables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks > 1 and self.model.compiled:
            raise InvalidTrainingSpec(
                f"ranks={self.ranks} with compiled layers is not supported; switch one of them off"
            )

    def device_of(self, rank: int) -> str:
        """ "cuda" means one GPU per rank."""
        return f"cuda:{rank}" if self.device == "cuda" and self.ranks > 1 else self.device


class LearnerCore:
    """One session on one rank. step_options: the run's objective; canary_rows: what the next canary is of."""

    def __init__(
        self, options: LearnerOptions, ranks: Ranks = ALONE, bases: Bases | None = None, name: str = "alone"
    ) -> None:
        """bases: shared with the other sessions of this process. name: of the session among them."""
        self.options = options
        self.ranks = ranks
        self._bases = bases or Bases()
        self._name = name
        self._device = options.device_of(ranks.index)
        self._parameters: Mapping[str, nn.Parameter] = {}
        self.step_options: StepOptions | None = None
        self._base: Path | None = None
        self._model: PackedModel | None = None
        self._reference: PackedModel | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self.rates: RateSchedule | None = None
        self.random = RandomState(0, self._device)
        self.canary_rows: Sequence[TrainingRow] = ()
        self._no_room_for_reference = False

    @property
    def loaded(self) -> tuple[PackedModel, torch.optim.Optimizer]:
        """Model and optimizer. Raises RuntimeError before `load`."""
        if self._model is None or self._optimizer is None:
            raise RuntimeError("the learner was not begun")
        return self._model, self._optimizer

    def load(self, spec: TrainingSpec, base: Path, tensors: Path | None) -> None:
        """The weights in `base`, a HF directory, with a fresh optimizer; or as it was when `tensors` was
        saved. Raises InvalidTrainingSpec."""
        self.close()
        self.step_options = step_options(spec, self.options)
        self.random = RandomState(spec.seed, self._device)
        model = self._model_for(spec, base)
        self._parameters = (
            model.adapter.parameters
            if isinstance(model, AdaptedModel)
            else dict(model.module.named_parameters())
        )
        optimizer = new_optimizer(self._parameters.values(), spec)
        rates = RateSchedule(optimizer, spec.schedule)
        self._base, self._model, self._optimizer, self.rates = base, model, optimizer, rates
        self.canary_rows = _random_rows(model, spec.seed)
        if self.step_options.objective.needs_reference:
            self.step_options = replace(self.step_options, reference=self.reference())
        if tensors is not None:
            load_tensors(read_state(tensors), self._parameters, optimizer, rates, self.random)

    def reference(self) -> PackedModel:
        """The policy that the session began from, frozen; in memory from its first use on."""
        model, _ = self.loaded
        if self._reference is None and isinstance(model, AdaptedModel):
            self._reference = model.without_adapter()
        elif self._reference is None and self._base is not None:
            options = self.options.model
            frozen = load_model(self._base, device=self._device, options=options, ranks=self.ranks)
            frozen.module.requires_grad_(False)
            self._reference = frozen
        if self._reference is None:
            raise RuntimeError("the learner was not begun")
        return self._reference

    def drift(self, rows: Sequence[TrainingRow]) -> dict[str, float]:
        """`drift_kl` of these rows; nothing where the first policy does not fit in memory beside this one:
        a run does not end for a measurement."""
        model, _ = self.loaded
        if self.step_options is None or self._no_room_for_reference:
            return {}
        try:
            found = drift_kl(model, self.reference(), rows, self.step_options, self.ranks)
        except (MemoryError, RuntimeError) as error:
            if self.ranks.size > 1 or not is_out_of_memory(error):
                raise
            self._no_room_for_reference = True
            log.warning("drift_not_measured", extra={"error": str(error)})
            return {}
        return {} if found is None else {"drift_kl": found}

    def _model_for(self, spec: TrainingSpec, base: Path) -> PackedModel:
        options = self.options

        def load() -> PackedModel:
            return load_model(base, device=self._device, options=options.model, ranks=self.ranks)

        if not spec.lora_rank:
            return load()
        if self.ranks.size > 1 or options.model.compiled:
            raise InvalidTrainingSpec(
                f"run {spec.run_id}: lora_rank={spec.lora_rank} needs one rank and layers that are not "
                f"compiled; this trainer has ranks={self.ranks.size}, compiled={options.model.compiled}: "
                "set lora_rank=0, or change the trainer's settings"
            )
        with self.random.active():
            return self._bases.adapted(base, self._name, spec, load)

    def close(self) -> None:
        """Free the memory; a shared base stays while another session uses it."""
        if self._base is not None and isinstance(self._model, AdaptedModel):
            self._bases.release(self._base, self._name)
        self._model = self._reference = self._optimizer = self.rates = self.step_options = None
        self._parameters, self.canary_rows = {}, ()

    def snapshot(self, writer: WriterThread | None) -> HostSnapshot | None:
        """The session as it is now, on the host. writer: of the first rank; the others only help to
        gather."""
        model, optimizer = self.loaded
        base, rates = self._base, self.rates
        if base is None or rates is None:
            raise RuntimeError("the learner was not begun")
        tensors = host_copy(self._parameters, optimizer, rates, self.random)
        export = _export_of(model, base, weights_of(tensors))
        rows = tuple(canary(model, self.canary_rows))
        return None if writer is None else HostSnapshot(tensors, rows, export, writer)


class SessionCores:
    """The sessions of one rank, by name; sessions with the same base share its weights."""

    def __init__(self, options: LearnerOptions, ranks: Ranks) -> None:
        self._options = options
        self._ranks = ranks
        self._bases = Bases()
        self._cores: dict[str, LearnerCore] = {}

    def opened(self, session: str) -> LearnerCore:
        """The session of that name, made where there is none."""
        if session not in self._cores:
            self._cores[session] = LearnerCore(self._options, self._ranks, self._bases, session)
        return self._cores[session]

    def get(self, session: str) -> LearnerCore:
        """The session of that name. Raises RuntimeError where there is none."""
        if session not in self._cores:
            raise RuntimeError(f"learner {session} was not begun")
        return self._cores[session]

    def close(self, session: str) -> None:
        """Free the memory of a session, if there is one."""
        if session in self._cores:
            self._cores.pop(session).close()


def _export_of(model: PackedModel, base: Path, weights: Mapping[str, Tensor]) -> Export:
    """Writes the policy that these weights, on the host, make of the base."""
    if isinstance(model, AdaptedModel):
        module, merge_scale = model.module, model.adapter.merge_scale

        def merged(directory: Path) -> None:
            export_policy(module, base, directory, merged_state(module, weights, merge_scale))
            export_adapter(base, directory, weights, merge_scale)

        return merged
    state = host_state(model.module, weights)
    return lambda directory: export_policy(model.module, base, directory, state)


def step_options(
    spec: TrainingSpec, options: LearnerOptions, other_loss: LossSpec | None = None
) -> StepOptions:
    """The objective of a run. other_loss: instead of the run's own; raises GrpoMathError where run_config
    refuses it."""
    loss = other_loss or LossSpec(spec.loss, spec.loss_config)
    aggregation = spec.aggregation or AGGREGATION_OF.get(spec.advantage, DEFAULT_AGGREGATION)
    kl = KlChoice(spec.kl_estimator, spec.kl_placement)
    objective = build_objective(loss.name, loss.config, aggregation=aggregation, kl=kl)
    return StepOptions(
        objective=objective,
        max_grad_norm=spec.max_grad_norm,
        microbatch_tokens=options.microbatch_tokens,
        share_prefixes=options.share_prefixes,
        clip_low=getattr(objective.loss, "clip_low", 0.2),
        clip_high=getattr(objective.loss, "clip_high", 0.28),
    )


def new_optimizer(parameters: Iterable[nn.Parameter], spec: TrainingSpec) -> torch.optim.Optimizer:
    """AdamW with the full learning rate."""
    return torch.optim.AdamW(
        list(parameters),
        lr=spec.peak_rate,
        betas=(spec.adam_beta1, spec.adam_beta2),
        weight_decay=spec.weight_decay,
        fused=True,
    )


def _random_rows(model: PackedModel, seed: int) -> list[TrainingRow]:
    """Rows for the canary of a policy that has not trained on anything yet."""
    generator = torch.Generator().manual_seed(seed)
    shape = (CANARY_ROWS, _CANARY_TOKENS)
    ids = torch.randint(model.module.config.vocab_size, shape, generator=generator)
    trained = torch.zeros(_CANARY_TOKENS, dtype=torch.bool)
    unknown = torch.zeros(_CANARY_TOKENS)
    return [TrainingRow(f"canary/{n}", "canary", row, trained, unknown, 0.0) for n, row in enumerate(ids)]


@torch.no_grad()
def canary(model: PackedModel, rows: Sequence[TrainingRow]) -> list[tuple[list[int], list[float]]]:
    """The first tokens of each row with their log-probabilities under the model, at temperature 1.

    In float32: engines compare them with what the published weights say, which are float32."""
    if not rows:
        return []
    probes = [_probe(row) for row in rows]
    logprobs, _ = model.logprobs(pack(probes, share_prefixes=False).to(model.device), exact=True)
    parts = torch.split(logprobs, [probe.num_trained for probe in probes])
    return [
        (probe.token_ids.tolist(), [min(value, 0.0) for value in part.tolist()])
        for probe, part in zip(probes, parts, strict=True)
    ]


def _probe(row: TrainingRow) -> TrainingRow:
    """The beginning of a row, all of it asked for."""
    ids = row.token_ids[:_CANARY_TOKENS]
    trained = torch.ones(ids.shape[0], dtype=torch.bool)
    trained[0] = False
    return TrainingRow(row.row_id, row.group_id, ids, trained, torch.zeros(ids.shape[0]), advantage=0.0)
