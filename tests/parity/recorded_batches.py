"""Batches that another trainer recorded: `FILE.npz` with weights, rows and gradients, `FILE.json` with its
cases.

The npz holds `w/<parameter>` (a Qwen3 model), `in/*` (prompts padded on the left, completions on the right,
log-probabilities, advantages) and per case `case/<name>/loss` and `case/<name>/grad` (all parameters,
flat). The json names each case's configuration in TRL's words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config

from grpo_math.corrections import OffPolicyRowMask, SamplerWeight
from grpo_math.losses import Anchor, Cispo, Ppo, RatioLevel, Sapo, TokenLoss, Vespo
from grpo_math.objective import KlPenalty, Objective
from grpo_math.packing import TrainingRow

_READ = frozenset(
    {
        "loss_type",
        "importance_sampling_level",
        "epsilon",
        "epsilon_high",
        "delta",
        "sapo_temperature_pos",
        "sapo_temperature_neg",
        "vespo_k_pos",
        "vespo_k_neg",
        "vespo_lambda_pos",
        "vespo_lambda_neg",
        "beta",
        "use_bias_correction_kl",
        "off_policy_mask_threshold",
        "top_entropy_quantile",
        "entropy_coef",
        "vllm_importance_sampling_mode",
        "vllm_importance_sampling_clip_min",
        "vllm_importance_sampling_clip_max",
    }
)
_AGGREGATION_OF = {
    "grpo": "row_mean",
    "sapo": "row_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "vespo": "token_mean",
    "dr_grpo": "constant_length",
    "luspo": "row_sum",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded loss. max_row_tokens: the constant of a constant-length mean."""

    name: str
    objective: Objective
    rows: tuple[TrainingRow, ...]
    max_row_tokens: int
    loss: float
    gradient: Tensor


class RecordedBatch:
    """A file of recorded cases."""

    def __init__(self, path: Path) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = dict(np.load(path))
        self._manifest: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())

    def config(self) -> Qwen3Config:
        """The architecture, read off the shapes of the weights."""
        embed = self._arrays["w/model.embed_tokens.weight"]
        head_dim = self._layer("self_attn.q_norm").shape[0]
        layers = {name.split(".")[2] for name in self._manifest["param_order"] if ".layers." in name}
        return Qwen3Config(
            vocab_size=embed.shape[0],
            hidden_size=embed.shape[1],
            intermediate_size=self._layer("mlp.gate_proj").shape[0],
            num_hidden_layers=len(layers),
            num_attention_heads=self._layer("self_attn.q_proj").shape[0] // head_dim,
            num_key_value_heads=self._layer("self_attn.k_proj").shape[0] // head_dim,
            head_dim=head_dim,
            max_position_embeddings=4096,
            tie_word_embeddings="lm_head.weight" not in self._manifest["param_order"],
        )

    def _layer(self, name: str) -> np.ndarray[Any, Any]:
        return self._arrays[f"w/model.layers.0.{name}.weight"]

    def weights(self) -> dict[str, Tensor]:
        """Parameters by name."""
        return {k.removeprefix("w/"): torch.tensor(v) for k, v in self._arrays.items() if k.startswith("w/")}

    @property
    def parameter_order(self) -> list[str]:
        """In which order the flat gradients hold the parameters."""
        return list(self._manifest["param_order"])

    def cases(self) -> list[Case]:
        """All cases, in the order of the file."""
        return [self._case(name, case) for name, case in self._manifest["cases"].items()]

    def _case(self, name: str, case: Mapping[str, Any]) -> Case:
        config, inputs = case["config"], case["inputs"]
        return Case(
            name=name,
            objective=objective_of(config, two_policies=bool(inputs.get("beh"))),
            rows=tuple(self._row(index, inputs) for index in range(len(self._arrays["in/advantages"]))),
            max_row_tokens=self._manifest["max_completion_length"],
            loss=float(self._arrays[f"case/{name}/loss"]),
            gradient=torch.tensor(self._arrays[f"case/{name}/grad"]),
        )

    def _row(self, index: int, inputs: Mapping[str, Any]) -> TrainingRow:
        prompt = self._masked("prompt_ids", "prompt_mask", index)
        completion = self._masked("completion_ids", "completion_mask", index)
        mask = self._masked("completion_mask", "completion_mask", index)
        if inputs.get("tool", True):
            mask = mask * self._masked("tool_mask", "completion_mask", index)
        before = torch.zeros(len(prompt), dtype=torch.float64)
        old = self._logprobs("old_logps", index, before)
        sampler = self._logprobs("behaviour_logps", index, before) if inputs.get("beh") else old
        if not inputs.get("old", True):
            sampler = torch.full_like(old, torch.nan)  # on policy: the ratio is 1
        return TrainingRow(
            row_id=f"{index:03d}",
            group_id=" ".join(map(str, prompt.tolist())),
            token_ids=torch.cat([prompt, completion]),
            trained=torch.cat([torch.zeros(len(prompt)), mask]).bool(),
            sampler_logprobs=sampler,
            advantage=float(self._arrays["in/advantages"][index]),
            proximal_logprobs=old if inputs.get("beh") else None,
            reference_logprobs=self._logprobs("ref_logps", index, before) if inputs.get("ref") else None,
        )

    def _masked(self, name: str, mask: str, index: int) -> Tensor:
        return torch.tensor(self._arrays[f"in/{name}"][index][self._arrays[f"in/{mask}"][index] > 0])

    def _logprobs(self, name: str, index: int, before: Tensor) -> Tensor:
        return torch.cat([before, self._masked(name, "completion_mask", index).double()])


def objective_of(config: Mapping[str, Any], *, two_policies: bool) -> Objective:
    """A TRL configuration in our words; what it leaves out has TRL 1.16's default.

    two_policies: sampler and proximal policy are told apart. Raises ValueError for what cannot be said.
    """
    unread = sorted(set(config) - _READ)
    if unread:
        known = ", ".join(sorted(_READ))
        raise ValueError(f"options {', '.join(unread)} are not known here; known are {known}")
    beta = config.get("beta", 0.0)
    biased = bool(config.get("use_bias_correction_kl", True))
    limit = config.get("off_policy_mask_threshold")
    return Objective(
        loss=_loss_of(config, "proximal" if two_policies else "sampler"),
        aggregation=_AGGREGATION_OF[config.get("loss_type", "dapo")],
        sampler_weight=_sampler_weight(config),
        row_mask=None if limit is None else OffPolicyRowMask(limit),
        kl=KlPenalty(beta, bias_corrected=biased, ratio_level=_ratio_level(config)) if beta else None,
        entropy_bonus=config.get("entropy_coef", 0.0),
        top_entropy=config.get("top_entropy_quantile", 1.0),
    )


def _ratio_level(config: Mapping[str, Any]) -> RatioLevel:
    return "row" if config.get("importance_sampling_level", "token") == "sequence" else "token"


def _loss_of(config: Mapping[str, Any], anchor: Anchor) -> TokenLoss:
    low, level = config.get("epsilon", 0.2), _ratio_level(config)
    high = low if config.get("epsilon_high") is None else config["epsilon_high"]
    kind = config.get("loss_type", "dapo")
    if kind == "cispo":
        return Cispo(cap_high=high, anchor=anchor, ratio_level=level)
    if kind == "sapo":
        return Sapo(
            config.get("sapo_temperature_pos", 1.0), config.get("sapo_temperature_neg", 1.05), anchor, level
        )
    if kind == "vespo":
        return _vespo_of(config, anchor)
    return Ppo(low, high, ratio_cap=config.get("delta") or 0.0, anchor=anchor, ratio_level=level)


def _vespo_of(config: Mapping[str, Any], anchor: Anchor) -> Vespo:
    if "vllm_importance_sampling_mode" in config:
        raise ValueError("vespo with vllm_importance_sampling_mode: TRL puts that weight inside vespo's own")
    return Vespo(
        config.get("vespo_k_pos", 2.0),
        config.get("vespo_lambda_pos", 3.0),
        config.get("vespo_k_neg", 3.0),
        config.get("vespo_lambda_neg", 2.0),
        anchor,
    )


def _sampler_weight(config: Mapping[str, Any]) -> SamplerWeight | None:
    mode = config.get("vllm_importance_sampling_mode")
    if mode is None:
        return None
    level, action = mode.split("_")
    high = config.get("vllm_importance_sampling_clip_max", 3.0)
    return SamplerWeight(
        level="row" if level == "sequence" else "token",
        action="drop" if action == "mask" else "truncate",
        high=math.inf if high is None else high,
        low=config.get("vllm_importance_sampling_clip_min") or 0.0,
    )
