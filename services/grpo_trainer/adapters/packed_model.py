"""A causal language model of transformers that runs on packed microbatches."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from grpo_math.logprobs import token_logprobs
from grpo_math.packed_attention import AttentionPlan, packed_attention
from grpo_math.packing import Microbatch
from grpo_trainer.domain.errors import InvalidTrainingSpec

_ATTENTION: Final = "upcycle_packed"
_LOADING: Final = threading.Lock()
"""from_pretrained switches process-wide defaults while it builds the module."""
_LOGIT_CHANGES: Final = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


class UnsupportedModel(InvalidTrainingSpec):
    """The architecture computes something that packed training would silently leave out."""


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
    longest = max(bucket.keys.shape[1] for bucket in packed_plan.buckets)
    if sliding_window is not None and longest > sliding_window:
        raise UnsupportedModel(f"a row of {longest} tokens exceeds the sliding window of {sliding_window}")
    return packed_attention(query, key, value, packed_plan, scaling), None


AttentionInterface.register(_ATTENTION, _attend)


class PackedModel:
    """Log-probabilities of trained tokens, without padding and without the logits of the rest."""

    def __init__(self, model: Any) -> None:
        """model: a transformers causal LM that was loaded with this module's attention."""
        _refuse_unsupported(model)
        self.module: Any = (
            model.eval()
        )  # no dropout: the ratio must be 1 on policy; gradients flow all the same

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.module.parameters()).device
        return device

    def logprobs(self, batch: Microbatch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token, [N] each, nats, at the row's temperature."""
        output = self.module.base_model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            packed_plan=batch.attention,
        )
        hidden = output.last_hidden_state[0].index_select(0, batch.source)
        head = self.module.get_output_embeddings().weight
        return token_logprobs(hidden, head, batch.labels, temperature=batch.temperature)


class PaddedModel:
    """The same numbers by transformers' own attention over rows padded on the right: slower, for any
    architecture.

    A second opinion in tests and parity checks, and the way out where packed attention is refused.
    """

    def __init__(self, model: Any) -> None:
        """model: a transformers causal LM with any attention of transformers."""
        _refuse_unsupported(model)
        self.module: Any = model.eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.module.parameters()).device
        return device

    def logprobs(self, batch: Microbatch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token, [N] each, nats, at the row's temperature."""
        rows = [batch.input_ids[0][path] for path in batch.paths]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        hidden = self.module.base_model(input_ids=ids, use_cache=False).last_hidden_state
        picked = hidden[batch.row_of_token, batch.positions - 1]
        head = self.module.get_output_embeddings().weight
        return token_logprobs(picked, head, batch.labels, temperature=batch.temperature)


class PolicyModel(Protocol):
    """What training needs of a model."""

    module: Any

    @property
    def device(self) -> torch.device: ...

    def logprobs(self, batch: Microbatch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token, [N] each."""


def load_model(directory: Path, *, device: str, dtype: torch.dtype = torch.float32) -> PackedModel:
    """The model of a HF directory. Raises UnsupportedModel."""
    transformers_logging.disable_progress_bar()
    with _LOADING:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation=_ATTENTION, local_files_only=True
        )
    return PackedModel(model.to(device))


def new_model(config: Any, *, dtype: torch.dtype = torch.float32) -> PackedModel:
    """A model with fresh random weights."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation=_ATTENTION)
    return PackedModel(model.to(dtype))


def new_padded_model(config: Any, *, dtype: torch.dtype = torch.float32) -> PaddedModel:
    """A model with fresh random weights that pads its rows."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return PaddedModel(model.to(dtype))


def read_config(directory: Path) -> Any:
    """The architecture of a HF directory."""
    return AutoConfig.from_pretrained(directory, local_files_only=True)


def _refuse_unsupported(model: Any) -> None:
    name = type(model).__name__
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise UnsupportedModel(f"{name} has no plain output projection; only one without bias is supported")
    for option, neutral in _LOGIT_CHANGES.items():
        if getattr(model.config, option, neutral) not in (neutral, None):
            raise UnsupportedModel(
                f"{name} sets {option}={getattr(model.config, option)}, which is not supported"
            )
