"""A causal language model of transformers that runs on packed microbatches."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from grpo_math.flex_attention import MIN_TOKENS, flex_mask, flex_packed_attention
from grpo_math.logprobs import token_logprobs
from grpo_math.packed_attention import AttentionPlan, packed_attention
from grpo_math.packing import Microbatch
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.learner.ranks import ALONE, Ranks
from grpo_trainer.learner.sharding import shard

_ATTENTION: Final = "upcycle_packed"
_LOADING: Final = threading.Lock()
"""from_pretrained switches process-wide defaults while it builds the module."""
_LOGIT_CHANGES: Final = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}
_PRECISIONS: Final = ("fp32", "bf16")
_ATTENTIONS: Final = ("auto", "buckets", "flex")
_FLEX_CAPABILITY: Final = (8, 0)
"""Oldest CUDA architecture whose fused flex attention is used: Ampere."""
_MIN_FLEX_HEAD: Final = 16
"""Smallest head of a model that the fused kernel of flex attention takes."""


class UnsupportedModel(InvalidTrainingSpec):
    """The architecture computes something that packed training would silently leave out."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model computes.

    precision: of the layers; parameters, optimizer, output head, softmax and ratios are float32 either way.
    gradient_checkpointing: keep one activation per layer and compute the rest again. compiled: by
    torch.compile. attention: "buckets" (fused attention over rows of similar size), "flex" (one kernel with
    a block mask), or "auto".
    """

    precision: str = "fp32"
    gradient_checkpointing: bool = False
    compiled: bool = False
    attention: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (("precision", _PRECISIONS), ("attention", _ATTENTIONS)):
            if getattr(self, name) not in known:
                raise InvalidTrainingSpec(
                    f"{name} {getattr(self, name)!r} does not exist; known: {', '.join(known)}"
                )


def attention_path(
    wanted: str,
    device: torch.device,
    *,
    capability: tuple[int, int] | None,
    head_dim: int,
    precision: str = "bf16",
) -> str:
    """ "buckets" or "flex". capability: of the CUDA device, None for any other. Raises UnsupportedModel.

    auto: flex in bf16 only. In float32 its kernel has no matrix units to use and is the slower one."""
    fits = capability is not None and capability >= _FLEX_CAPABILITY and head_dim >= _MIN_FLEX_HEAD
    if wanted == "flex" and not fits:
        raise UnsupportedModel(
            f"flex attention learns on GPUs of CUDA capability {_FLEX_CAPABILITY} with heads of at least "
            f"{_MIN_FLEX_HEAD}, got {device.type}, {capability} and {head_dim}; use buckets"
        )
    if wanted == "auto":
        return "flex" if fits and precision == "bf16" else "buckets"
    return wanted


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    packed_plan: AttentionPlan,
    **other: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls in every layer. Refuses variants that it would compute
    wrongly."""
    unknown = [name for name in ("softcap", "s_aux") if other.get(name) is not None]
    if unknown:
        raise UnsupportedModel(
            f"{type(module).__name__} wants attention with {unknown}; packed attention has none"
        )
    sliding_window = other.get("sliding_window")
    if sliding_window is not None and packed_plan.longest > sliding_window:
        raise UnsupportedModel(
            f"a row of {packed_plan.longest} tokens exceeds the sliding window of {sliding_window}"
        )
    mask = other.get("packed_mask")
    if mask is not None:
        return flex_packed_attention(query, key, value, mask, scaling), None
    return packed_attention(query, key, value, packed_plan, scaling), None


AttentionInterface.register(_ATTENTION, torch.compiler.disable(_attend))  # type: ignore[no-untyped-call]


class _TokenScores(nn.Module):
    """Layers and output head under one forward, so that sharded parameters are whole inside of it."""

    def __init__(self, model: Any, *, bf16: bool) -> None:
        super().__init__()
        self.model = model
        self._bf16 = bf16

    def forward(self, batch: Microbatch, mask: Any, exact: bool) -> tuple[Tensor, Tensor]:
        bf16 = self._bf16 and not exact
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=bf16):
            output = self.model.base_model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                packed_plan=batch.attention,
                packed_mask=mask,
            )
        head = self.model.get_output_embeddings().weight
        hidden = _rows(output.last_hidden_state[0], batch.source).to(head.dtype)
        return token_logprobs(hidden, head, batch.labels, temperature=batch.temperature)


def _rows(states: Tensor, index: Tensor) -> Tensor:
    """[U, H] and [N] -> [N, H]. Rows of a group share tokens, so an index comes several times; of the two
    backward sums, this picks the one that adds in the same order each time."""
    return states[index] if states.is_cuda else states.index_select(0, index)


class PackedModel:
    """Log-probabilities of trained tokens, without padding and without the logits of the rest."""

    def __init__(self, model: Any, options: ModelOptions | None = None, ranks: Ranks = ALONE) -> None:
        """model: a transformers causal LM that was loaded with this module's attention, on its device."""
        options = options or ModelOptions()
        refuse_unsupported(model)
        self.module: Any = (
            model.eval()
        )  # no dropout: the ratio must be 1 on policy; gradients flow all the same
        device = self.device
        facts = {**_facts(model, device), "precision": options.precision}
        self._flex = attention_path(options.attention, device, **facts) == "flex"
        self._scores = _TokenScores(self.module, bf16=options.precision == "bf16")
        blocks = layers_of(model)
        if options.gradient_checkpointing:
            _checkpoint(model, blocks)
        if options.compiled:
            for block in blocks:
                block.compile(dynamic=True)
        if ranks.size > 1:
            shard(self._scores, blocks, ranks, device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.module.parameters()).device
        return device

    def logprobs(self, batch: Microbatch, *, exact: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token, [N] each, nats, at the row's temperature.

        exact: in float32, whatever the layers compute in otherwise."""
        fused = self._flex and not exact and batch.num_unique_tokens >= MIN_TOKENS
        mask = flex_mask(batch.attention) if fused else None
        scores: tuple[Tensor, Tensor] = self._scores(batch, mask, exact)
        return scores


class PolicyModel(Protocol):
    """What training needs of a model."""

    module: Any

    @property
    def device(self) -> torch.device: ...

    def logprobs(self, batch: Microbatch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token, [N] each."""


def load_model(
    directory: Path,
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    options: ModelOptions | None = None,
    ranks: Ranks = ALONE,
) -> PackedModel:
    """The model of a HF directory. Raises UnsupportedModel."""
    transformers_logging.disable_progress_bar()
    with _LOADING:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation=_ATTENTION, local_files_only=True
        )
    return PackedModel(model.to(device), options, ranks)


def new_module(config: Any, *, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model with fresh random weights, for a PackedModel."""
    return AutoModelForCausalLM.from_config(config, attn_implementation=_ATTENTION).to(dtype)


def layers_of(model: Any) -> list[Any]:
    """The repeated blocks of a transformers model, in order of depth."""
    return [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]


def _checkpoint(model: Any, blocks: list[Any]) -> None:
    if not model.supports_gradient_checkpointing or not blocks:
        raise UnsupportedModel(f"{type(model).__name__} has no gradient checkpointing; switch it off")
    for block in blocks:
        block.gradient_checkpointing = True
        block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        block.training = True  # a block checkpoints only then; its parts, dropout among them, do not train


def _facts(model: Any, device: torch.device) -> dict[str, Any]:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    on_gpu = device.type == "cuda"
    return {"capability": torch.cuda.get_device_capability(device) if on_gpu else None, "head_dim": head_dim}


def refuse_unsupported(model: Any) -> None:
    """Raises UnsupportedModel where the output head computes more than a product."""
    name = type(model).__name__
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise UnsupportedModel(f"{name} has no plain output projection; only one without bias is supported")
    for option, neutral in _LOGIT_CHANGES.items():
        if getattr(model.config, option, neutral) not in (neutral, None):
            raise UnsupportedModel(
                f"{name} sets {option}={getattr(model.config, option)}, which is not supported"
            )
