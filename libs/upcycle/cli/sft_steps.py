"""The optimizer steps of `upcycle train --sft`, and how they are shown.

A step is in the trainer's memory until one is saved, once a minute and at the end. Steps that the trainer
loses with its memory are taken again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from upcycle.cli.live_view import BoundedLines, one_row, redraws
from upcycle.cli.output import human, print_json
from upcycle.cli.sparkline import sparkline
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.rpc import RemoteConflict
    from upcycle.train import Conversation, StepResult, TrainingClient
    from upcycle.train.requests import Persist

LOSS: Final = "cross_entropy"
SAVE_EVERY_S: Final = 60.0
_MAX_LOSSES: Final = 3
"""How often the trainer may lose its steps before one is saved."""


@dataclass(frozen=True, slots=True)
class SftPlan:
    """The batches of all steps, in order. source: the file or the run that they come from."""

    source: str
    batches: "tuple[tuple[str | Conversation, ...], ...]"


class Show(Protocol):
    """Called after each step, with its number from 1."""

    def __call__(self, number: int, result: "StepResult", /) -> None: ...


async def run_plan(
    client: "TrainingClient",
    plan: SftPlan,
    learning_rate: float,
    show: Show,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> "StepResult":
    """Take all steps, of which only the last one moves head; returns the result of the last. Raises
    RemoteConflict where the trainer loses its memory again and again."""
    from upcycle.rpc import RemoteConflict

    number = saved = num_losses = 0
    saved_at, result = clock(), None
    while result is None or number < len(plan.batches):
        is_last = number + 1 == len(plan.batches)
        is_saved = is_last or clock() - saved_at >= SAVE_EVERY_S
        persist: Persist = "checkpoint" if is_saved else "none"
        try:
            result = await client.step(
                plan.batches[number],
                learning_rate=learning_rate,
                loss_fn=LOSS,
                promote=is_last,
                persist=persist,
            )
        except RemoteConflict as error:
            num_losses += 1
            _say_lost(error, saved, num_losses)
            number, result = saved, None
            continue
        number += 1
        if is_saved:
            saved, saved_at, num_losses = number, clock(), 0
        show(number, result)
    return result


def _say_lost(error: "RemoteConflict", saved: int, num_losses: int) -> None:
    """Say from where it goes on. Raises the error where it is another one, or came too often."""
    from upcycle.train.client import LOST_STEPS

    if error.reason != LOST_STEPS or num_losses > _MAX_LOSSES:
        raise error
    text = f"the trainer lost steps that were not saved: it goes on with step {saved + 1}"
    human().print(one_row(text), markup=False, soft_wrap=True)


def loss_of(result: "StepResult") -> float:
    """Mean cross-entropy of the step's trained tokens, nats."""
    return float(result.metrics.get("loss", float("nan")))


@contextmanager
def shown(plan: SftPlan, model: str, *, as_json: bool) -> Iterator[Show]:
    """JSON lines, a curve in a terminal, or lines at a bounded rate. It needs a running event loop."""
    console, losses, count = human(), list[float](), len(plan.batches)
    lines, is_frame = BoundedLines(console), redraws(console)

    def line(number: int, result: "StepResult", /) -> None:
        losses.append(loss_of(result))
        text = f"step {number}/{count}  loss {losses[-1]:.4f}  {sparkline(losses, 30)}"
        if is_frame:
            console.print(text, markup=False, end="\r" if number < count else "\n")
        else:
            lines.show(text)

    def json_line(number: int, result: "StepResult", /) -> None:
        kind = "done" if number == count else "step"
        fields = {"version": result.version, "checkpoint_id": result.checkpoint_id, "is_head": result.is_head}
        print_json(kind, {"step": number, "steps": count, **fields, "metrics": dict(result.metrics)})

    if as_json:
        yield json_line
    else:
        console.print(f"{model}: SFT on {plan.source} in {amount(count, 'step')}", markup=False)
        try:
            yield line
        finally:
            lines.close()
