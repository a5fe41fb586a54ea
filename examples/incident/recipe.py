"""The run with which this example learns on a laptop (demo.toml), and what its starting policy must reach.

The demo, the warm start, the benchmarks and the tests read RECIPE.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.incident.env import prompt
from upcycle.run_config import Purpose, Training
from upcycle.run_config.reading import RunFile, gather

RUN: Final = gather({}, (), Path(__file__).with_name("demo.toml"), names={}).run(Purpose.TRAIN, {})


@dataclass(frozen=True, slots=True)
class Recipe:
    """The example's run and the bounds of its success. Units are in the names."""

    run: RunFile = RUN
    training: Training = RUN.training or Training()
    # Success at temperature 1 on held-out incidents: of the committed policy, and what a run must reach.
    start_at_least: float = 0.10
    start_at_most: float = 0.35
    target: float = 0.80
    # What a production app would ask; `amber-api` is a held-out name.
    production_prompt: str = prompt("amber-api")


RECIPE = Recipe()
