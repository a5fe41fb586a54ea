"""`python -m grpo_trainer.parity FILE.npz`: this trainer's own code on a batch that another trainer recorded.

Prints a line per case and computation, the worst errors last. Exit status: 0 within the bounds, 1 past
them, 2 for a file that cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from grpo_trainer.adapters.optimization import StepOptions, accumulate
from grpo_trainer.adapters.packed_model import PolicyModel, new_model, new_padded_model
from grpo_trainer.adapters.recorded_batches import Case, RecordedBatch

MAX_LOSS_ERROR: Final = 1e-6
"""Absolute."""
MAX_GRADIENT_ERROR: Final = 1e-5
"""Largest absolute difference of an element over the largest element."""


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


def check(batch: RecordedBatch, computations: Sequence[Computation]) -> Iterator[Finding]:
    """Every case under every computation, in float64."""
    models = {padded: _model(batch, padded=padded) for padded in {one.padded for one in computations}}
    for case in batch.cases():
        for computation in computations:
            yield _compare(case, computation, models[computation.padded], batch.parameter_order)


def _model(batch: RecordedBatch, *, padded: bool) -> PolicyModel:
    build: Callable[..., PolicyModel] = new_padded_model if padded else new_model
    model = build(batch.config(), dtype=torch.float64)
    model.module.load_state_dict(batch.weights())
    return model


def _compare(case: Case, computation: Computation, model: PolicyModel, order: Sequence[str]) -> Finding:
    loss, gradient = step_gradient(case, computation, model, order)
    scale = float(case.gradient.abs().max().clamp(min=1e-12))
    return Finding(
        case=case.name,
        computation=computation.name,
        loss=loss,
        loss_error=abs(loss - case.loss),
        gradient_error=float((gradient - case.gradient).abs().max()) / scale,
    )


def step_gradient(
    case: Case, computation: Computation, model: PolicyModel, order: Sequence[str]
) -> tuple[float, Tensor]:
    """Loss and flat gradient of a case, by the code that a training step runs."""
    model.module.zero_grad()
    options = StepOptions(
        objective=case.objective,
        microbatch_tokens=computation.microbatch_tokens,
        share_prefixes=computation.share_prefixes,
        max_row_tokens=case.max_row_tokens,
    )
    found = accumulate(model, case.rows, options)
    parameters = dict(model.module.named_parameters())
    gradients = [parameters[name].grad for name in order]
    flat = torch.cat([g.flatten() for g in gradients if g is not None])
    return (0.0 if found is None else found.loss), flat


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases of a file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m grpo_trainer.parity", description=__doc__)
    parser.add_argument("file", type=Path, help="recorded batch (.npz, with its .json beside it)")
    path = parser.parse_args(argv).file
    try:
        batch = RecordedBatch(path)
    except (OSError, ValueError, KeyError) as error:
        print(f"{path}: cannot be read as a recorded batch: {error}", file=sys.stderr)
        return 2
    findings = []
    for finding in check(batch, COMPUTATIONS):
        findings.append(finding)
        print(finding.line, flush=True)
    failed = [finding for finding in findings if not finding.passed]
    within = f"loss <= {MAX_LOSS_ERROR:g} absolute, gradient <= {MAX_GRADIENT_ERROR:g} relative"
    print(f"{len(findings) - len(failed)} of {len(findings)} within {within}")
    one = max(findings, key=lambda f: f.loss_error)
    print(f"worst loss error {one.loss_error:.2e} ({one.case}, {one.computation})")
    one = max(findings, key=lambda f: f.gradient_error)
    print(f"worst gradient error {one.gradient_error:.2e} ({one.case}, {one.computation})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
