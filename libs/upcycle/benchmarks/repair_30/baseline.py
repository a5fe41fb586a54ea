"""What the scripted players earn: `python -m upcycle.benchmarks.repair_30.baseline` writes baseline.json."""

import json
from pathlib import Path
from typing import Final

from upcycle.benchmarks.calibration import Calibration

from .drawing import NUM_HELD_OUT, drawn
from .env import env, repair
from .players import ANCHOR, PLAYERS, calls_of

FILE: Final = Path(__file__).with_name("baseline.json")


def family_of(number: int) -> str:
    """Of the task of this number."""
    return drawn("held_out", number).library.name


CALIBRATION: Final = Calibration("repair-30", ANCHOR, env, repair, PLAYERS, NUM_HELD_OUT, calls_of, family_of)
played, rewards = CALIBRATION.played, CALIBRATION.rewards

if __name__ == "__main__":
    FILE.write_text(json.dumps(CALIBRATION.table(), indent=1) + "\n")
    print(f"wrote {FILE}")
