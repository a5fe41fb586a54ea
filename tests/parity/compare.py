"""`python -m tests.parity.compare FILE.npz`: the trainer's own code on a batch that another trainer recorded.

Computes every case in this process, then on several ranks of `torchrun`. Prints a line per case and
computation, the worst errors last. Exit status: 0 within the bounds, 1 past them, 2 for a file that cannot
be read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from tests.parity.padded_model import PaddedModel, padded_module
from tests.parity.recorded_batches import Case, RecordedBatch
from torch import Tensor

from grpo_math.packing import rank_shares
from grpo_trainer.learner.optimization import StepOptions, accumulate
from grpo_trainer.learner.packed_model import PackedModel, PolicyModel, new_module
from grpo_trainer.learner.ranks import ALONE, Ranks
from grpo_trainer.learner.sharding import whole

MAX_LOSS_ERROR: Final = 1e-6
"""Absolute."""
MAX_GRADIENT_ERROR: Final = 1e-5
"""Largest absolute difference of an element over the largest element."""
_ROOT: Final = Path(__file__).parents[2]
_RANKS_DEADLINE_S: Final = 900.0
"""How long the ranks may take for all cases."""


@dataclass(frozen=True, slots=True)
class Computation:
    """One way in which the trainer may compute a step."""

    name: str
    padded: bool = False
    share_prefixes: bool = True
    microbatch_tokens: int = 1 << 20


COMPUTATIONS: Final = (
    Computation("packed"),
    Computation("packed-unshared", share_prefixes=False),
    Computation("packed-microbatches", microbatch_tokens=40),
    Computation("padded", padded=True),
)
RANK_COMPUTATIONS: Final = (Computation("packed", microbatch_tokens=40), Computation("padded", padded=True))


@dataclass(frozen=True, slots=True)
class Finding:
    """Errors of one case under one computation."""

    case: str
    computation: str
    loss: float
    loss_error: float
    gradient_error: float

    @property
    def passed(self) -> bool:
        return self.loss_error <= MAX_LOSS_ERROR and self.gradient_error <= MAX_GRADIENT_ERROR

    @property
    def line(self) -> str:
        """For people and for grep."""
        errors = f"loss error {self.loss_error:.1e}  gradient error {self.gradient_error:.1e}"
        verdict = "ok" if self.passed else "FAILED"
        return f"{self.case:22s} {self.computation:20s} loss {self.loss:+.10f}  {errors}  {verdict}"


def check(
    batch: RecordedBatch, computations: Sequence[Computation], ranks: Ranks = ALONE
) -> Iterator[Finding]:
    """Every case under every computation, in float64. All ranks must ask for it."""
    wanted = {one.padded for one in computations}
    models = {padded: _model(batch, ranks, padded=padded) for padded in sorted(wanted)}
    for case in batch.cases():
        for computation in computations:
            model = models[computation.padded]
            loss, gradient = step_gradient(case, computation, model, batch.parameter_order, ranks)
            yield _compared(case, computation, loss, gradient, ranks)


def _model(batch: RecordedBatch, ranks: Ranks, *, padded: bool) -> PolicyModel:
    module = (padded_module if padded else new_module)(batch.config(), dtype=torch.float64)
    module.load_state_dict(batch.weights())
    return PaddedModel(module, ranks) if padded else PackedModel(module, ranks=ranks)


def _compared(case: Case, computation: Computation, loss: float, gradient: Tensor, ranks: Ranks) -> Finding:
    scale = float(case.gradient.abs().max().clamp(min=1e-12))
    return Finding(
        case=case.name,
        computation=computation.name + (f"-{ranks.size}-ranks" if ranks.size > 1 else ""),
        loss=loss,
        loss_error=abs(loss - case.loss),
        gradient_error=float((gradient - case.gradient).abs().max()) / scale,
    )


def step_gradient(
    case: Case, computation: Computation, model: PolicyModel, order: Sequence[str], ranks: Ranks = ALONE
) -> tuple[float, Tensor]:
    """Loss and flat gradient of a case, by the code that a training step runs."""
    model.module.zero_grad()
    options = StepOptions(
        objective=case.objective,
        microbatch_tokens=computation.microbatch_tokens,
        share_prefixes=computation.share_prefixes,
    )
    rows = rank_shares(case.rows, ranks.size)[ranks.index] if ranks.size > 1 else case.rows
    found = accumulate(model, rows, options, ranks, max_row_tokens=case.max_row_tokens)
    parameters = dict(model.module.named_parameters())
    gradients = [parameters[name].grad for name in order]
    flat = torch.cat([whole(g).flatten() for g in gradients if g is not None])
    return (0.0 if found is None else found.loss), flat


def on_ranks(path: Path, size: int) -> Iterator[Finding]:
    """Every case on `size` ranks, in processes of their own. Raises RuntimeError where they fail."""
    here = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        (*here, "-m", "tests.parity.compare", str(path.resolve())),
        env=environment,
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_RANKS_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{size} ranks ended with status {done.returncode}: {done.stderr[-2000:]}")
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield Finding(**json.loads(line))


def _rank() -> int:
    """One rank under torchrun: the first prints its findings as JSON lines."""
    dist.init_process_group("gloo")
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    for finding in check(RecordedBatch(Path(sys.argv[1])), RANK_COMPUTATIONS, ranks):
        if ranks.index == 0:
            print(json.dumps(asdict(finding)), flush=True)
    dist.destroy_process_group()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases of a file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.compare", description=__doc__)
    parser.add_argument("file", type=Path, help="recorded batch (.npz, with its .json beside it)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the second part; 1 leaves it out")
    arguments = parser.parse_args(argv)
    try:
        batch = RecordedBatch(arguments.file)
        batch.cases()
    except (OSError, ValueError, KeyError) as error:
        print(f"{arguments.file}: cannot be read as a recorded batch: {error}", file=sys.stderr)
        return 2
    findings = []
    for finding in check(batch, COMPUTATIONS):
        findings.append(finding)
        print(finding.line, flush=True)
    if arguments.ranks > 1:
        for finding in on_ranks(arguments.file, arguments.ranks):
            findings.append(finding)
            print(finding.line, flush=True)
    return _report(findings)


def _report(findings: Sequence[Finding]) -> int:
    failed = [finding for finding in findings if not finding.passed]
    within = f"loss <= {MAX_LOSS_ERROR:g} absolute, gradient <= {MAX_GRADIENT_ERROR:g} relative"
    print(f"{len(findings) - len(failed)} of {len(findings)} within {within}")
    one = max(findings, key=lambda f: f.loss_error)
    print(f"worst loss error {one.loss_error:.2e} ({one.case}, {one.computation})")
    one = max(findings, key=lambda f: f.gradient_error)
    print(f"worst gradient error {one.gradient_error:.2e} ({one.case}, {one.computation})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(_rank() if "TORCHELASTIC_RUN_ID" in os.environ else main())
