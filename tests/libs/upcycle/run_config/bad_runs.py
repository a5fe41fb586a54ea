"""Trainings that must be refused: the planner, the trainer and the command line are tested with each."""

from typing import Any

BAD_TRAININGS: list[tuple[dict[str, Any], str]] = [
    ({"loss": "ppoo"}, "spec.training.loss 'ppoo' does not exist; did you mean 'ppo'? known: cispo,"),
    ({"loss": "cross_entropy"}, "spec.training.loss 'cross_entropy' is the loss of SFT"),
    ({"advantage": "grp"}, "spec.training.advantage 'grp' does not exist; did you mean 'grpo'?"),
    ({"aggregation": "token_median"}, "did you mean 'token_mean'?"),
    ({"lr_schedule": "cosin"}, "spec.training.lr_schedule 'cosin' does not exist; did you mean 'cosine'?"),
    ({"kl_estimator": "k9"}, "spec.training.kl_estimator 'k9' does not exist"),
    ({"kl_estimator": "k2"}, "spec.training.kl_estimator 'k2' without kl_coefficient is not read"),
    ({"kl_placement": "both"}, "spec.training.kl_placement 'both' does not exist"),
    ({"loss": "gspo", "loss_config": {"clip_lo": 0.1}}, "of loss 'gspo': 'clip_lo' does not exist"),
    ({"loss_config": {"dual_clip": 0.5}}, "must be 0 (off), or > 1 and <= 1e+09, got 0.5"),
    ({"loss_config": {"clip_low": float("nan")}}, "spec.training.loss_config['clip_low'] must be > 0"),
    ({"loss_config": {"entropy_bonus": float("nan")}}, "['entropy_bonus'] must be >= -1e+09"),
    ({"loss_config": {"sampler_weight_high": 2.0}}, "set proximal_anchor to 1"),
    ({"steps": -1}, "spec.training.steps must be >= 0 and <= 1e+09, got -1: 0 trains until"),
    ({"steps": 3, "epochs": 2}, "spec.training.steps (3) and spec.training.epochs (2) both say how long"),
    ({"epochs": 0}, "spec.training.epochs must be >= 1"),
    ({"steps": 0, "lr_schedule": "cosine"}, "spec.training.steps is 0, which has no end"),
    ({"steps": 3, "warmup_steps": 3}, "must be >= 0 and below spec.training.steps (3), got 3"),
    ({"steps": 0, "warmup_steps": -1}, "spec.training.warmup_steps must be >= 0 and <= 1e+09, got -1"),
    ({"loss_config": {"proximal_anchor": 0.5}}, "['proximal_anchor'] must be 0 (off), or 1, got 0.5"),
    ({"loss": "decoupled", "loss_config": {"clamp_weight": -1}}, "['clamp_weight'] must be 0 (off), or 1"),
    (
        {"lr_schedule": "constant", "min_lr_fraction": 0.5},
        "spec.training.min_lr_fraction is 0.5 but a constant rate falls",
    ),
    ({"min_lr_fraction": 1.5, "lr_schedule": "linear"}, "min_lr_fraction must be >= 0 and <= 1"),
    ({"learning_rate": 0.0}, "spec.training.learning_rate must be > 0 and <= 10, got 0"),
    ({"learning_rate": float("inf")}, "spec.training.learning_rate must be > 0 and <= 10, got inf"),
    ({"prompts_per_step": 0}, "spec.training.prompts_per_step must be >= 1"),
    (
        {"prompts_per_step": 1000, "group_size": 2},
        "must be >= 1 and <= 999, got 1000: a step is published as one",
    ),
    ({"prompts_per_step": 257, "group_size": 8}, "* spec.group_size is 2056, limit 2048: lower one of them"),
    ({"group_size": 1}, "spec.group_size must be >= 2 and <= 1024, got 1: one rollout has nothing to be"),
    ({"group_size": 1025}, "spec.group_size must be >= 1 and <= 1024, got 1025"),
    (
        {"max_staleness": 4, "stale_after": 3},
        "spec.training.stale_after is 3 and spec.training.max_staleness 4: groups that sampling may",
    ),
    ({"stale_after": -1}, "spec.training.stale_after must be >= 0 and <= 8000"),
    ({"max_staleness": -1}, "spec.training.max_staleness must be >= 0 and <= 1000"),
    ({"adam_beta1": 1.0}, "spec.training.adam_beta1 must be >= 0 and < 1, got 1"),
    ({"lora_alpha": 4}, "spec.training.lora_alpha is set but spec.training.lora_rank is 0"),
    ({"lora_rank": 4, "lora_targets": "q_proj,,v_proj"}, "holds an empty name"),
    ({"no_step_groups": -1}, "spec.training.no_step_groups must be >= 0"),
    ({"max_infra_failures": 1.5}, "spec.training.max_infra_failures must be >= 0 and <= 1"),
]
"""A training (and its group_size), and what its refusal says."""
