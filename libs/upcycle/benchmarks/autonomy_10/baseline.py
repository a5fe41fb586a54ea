"""Writes what the scripted players earn: `python -m upcycle.benchmarks.autonomy_10.baseline`."""

import json
from pathlib import Path
from typing import Final

from upcycle.benchmarks.calibration import Calibration

from .categories import CATEGORIES
from .env import NUM_TASKS, env, work
from .players import ANCHOR, PLAYERS, calls_of

FILE: Final = Path(__file__).with_name("baseline.json")


def family_of(number: int) -> str:
    """Of the task of this number."""
    return CATEGORIES[number % len(CATEGORIES)].name


CALIBRATION: Final = Calibration("autonomy-10", ANCHOR, env, work, PLAYERS, NUM_TASKS, calls_of, family_of)
played, rewards = CALIBRATION.played, CALIBRATION.rewards

if __name__ == "__main__":
    FILE.write_text(json.dumps(CALIBRATION.table(), indent=1) + "\n")
    print(f"wrote {FILE}")
