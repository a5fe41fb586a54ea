"""Writes demonstrations.jsonl: the reference player's episodes, for supervised fine-tuning (SFT).

python demonstrate.py [COUNT]
"""

import sys

from player import reply
from tasks import task

from upcycle.playing.demonstrations import write_demonstrations

if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    write_demonstrations("demonstrations.jsonl", (task("train", seed) for seed in range(count)), reply)
