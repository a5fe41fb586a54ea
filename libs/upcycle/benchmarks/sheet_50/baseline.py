"""What the scripted players earn: `python -m upcycle.benchmarks.sheet_50.baseline` writes baseline.json."""

import json
from pathlib import Path
from typing import Final

from upcycle.benchmarks.calibration import Calibration

from .env import NUM_TASKS, drawn, env, workbook
from .players import ANCHOR, PLAYERS, calls_of

FILE: Final = Path(__file__).with_name("baseline.json")


def family_of(number: int) -> str:
    """Of the task of this number."""
    return drawn(number)[0].family


CALIBRATION: Final = Calibration("sheet-50", ANCHOR, env, workbook, PLAYERS, NUM_TASKS, calls_of, family_of)
played, rewards = CALIBRATION.played, CALIBRATION.rewards

if __name__ == "__main__":
    FILE.write_text(json.dumps(CALIBRATION.table(), indent=1) + "\n")
    print(f"wrote {FILE}")
