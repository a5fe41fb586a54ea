"""The hyperparameters with which this example learns on a laptop, measured in this folder's README.

The demo reads RECIPE; the warm start and the tests check against it.
"""

from dataclasses import dataclass

from examples.incident.env import prompt


@dataclass(frozen=True, slots=True)
class Recipe:
    """One training run of the example and its held-out gate. Units are in the names; counts are per step."""

    steps: int = 14
    prompts_per_step: int = 32
    group_size: int = 8
    max_staleness: int = 1
    learning_rate: float = 6e-4
    adam_betas: tuple[float, float] = (0.9, 0.95)
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    max_turns: int = 6
    max_tokens_per_turn: int = 32
    checkpoint_every_steps: int = 3
    # Held-out attempts per task of a gate or a baseline.
    eval_attempts: int = 2
    # The largest loss of success a family of causes may suffer when a candidate is promoted.
    regression_margin: float = 0.2
    # Success at temperature 1 on held-out incidents: of the committed policy, and what a run must reach.
    start_at_least: float = 0.10
    start_at_most: float = 0.35
    target: float = 0.80
    # What a production app would ask; `amber-api` is a held-out name.
    production_prompt: str = prompt("amber-api")


RECIPE = Recipe()
