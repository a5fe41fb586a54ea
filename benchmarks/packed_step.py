"""Our optimizer step on a recorded batch, in a process of its own; one JSON line.

python -m benchmarks.packed_step POLICY_DIR ROWS.npz THREADS REPEATS MICROBATCH_TOKENS SHARE_PREFIXES
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.peers.memory import resident_mib, step_peak_mib
from benchmarks.step_batches import read_rows
from grpo_math.objective import build_objective
from grpo_trainer.learner.optimization import StepOptions, optimize
from grpo_trainer.learner.packed_model import load_model

WARM_UP: Final = 2


def main() -> None:
    """Warm up, then repeat. In a thread of its own, as in the trainer, whose main thread serves."""
    with ThreadPoolExecutor(max_workers=1) as learner:
        print(json.dumps(learner.submit(_measure).result()))


def _measure() -> dict[str, Any]:
    policy, path = Path(sys.argv[1]), Path(sys.argv[2])
    threads, repeats, microbatch_tokens, share = map(int, sys.argv[3:7])
    torch.set_num_threads(threads)
    rows = read_rows(path)
    model = load_model(policy, device="cpu")
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-5, betas=(0.9, 0.95), fused=True)
    options = StepOptions(build_objective(), microbatch_tokens=microbatch_tokens, share_prefixes=bool(share))
    before, seconds = resident_mib(), []
    first: dict[str, float] = {}
    for _ in range(WARM_UP + repeats):
        began = time.perf_counter()
        values = optimize(model, optimizer, rows, options, max_row_tokens=0)
        seconds.append(time.perf_counter() - began)
        first = first or dict(values or {})
    said = {"loss": first["loss"], "grad_norm": first["grad_norm"], "seconds": seconds[WARM_UP:]}
    return {**said, "peak_mib": step_peak_mib() - before}


if __name__ == "__main__":
    main()
