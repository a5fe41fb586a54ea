"""`upcycle train --sft`: behaviour cloning from a file of conversations, or from what succeeded in a run."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from upcycle.cli.exits import Exit
from upcycle.cli.output import human, print_json
from upcycle.cli.sparkline import sparkline
from upcycle.errors import UpcycleError
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
    from upcycle.cli.train import Cloning, Recipe, View
    from upcycle.train import Conversation, StepResult

LOSS: Final = "cross_entropy"
_PAGE: Final = 1000


class CloningRefused(UpcycleError, ValueError):
    """What was asked for cannot be imitated."""

    kind = "cloning_refused"


@dataclass(frozen=True, slots=True)
class Plan:
    """Batches in order. source: what people call it."""

    source: str
    batches: "tuple[tuple[str | Conversation, ...], ...]"


class Client(Protocol):
    """The part of TrainingClient that is used here."""

    async def step(
        self, inputs: "Sequence[Any]", *, learning_rate: float, loss_fn: str, promote: bool
    ) -> "StepResult":
        """One optimizer step."""


async def clone(model: str, recipe: "Recipe", cloning: "Cloning", view: "View") -> int:
    """Clone what the options name into `model`. Raises CloningRefused."""
    from grpc_edge import remote_errors
    from upcycle.train import TrainingClient

    if recipe.taskset is not None or (cloning.sft is not None and cloning.sft_from is not None):
        raise CloningRefused("--taskset, --sft and --sft-from name several things", "give one of them")
    if recipe.lr_schedule != "constant" or recipe.warmup_steps or recipe.min_lr_fraction:
        raise CloningRefused(
            "--lr-schedule, --warmup-steps and --min-lr-fraction are for GRPO over a taskset",
            "leave them out; with `TrainingClient.step` each step brings its own learning_rate",
        )
    if view.detach:
        raise CloningRefused("--detach: behaviour cloning is driven from here", "leave --detach out")
    async with Platform() as platform, remote_errors():
        source, chosen = await _chosen(platform, cloning)
        inputs = (
            [one.trajectory_id for one in chosen] if cloning.sft is None else conversations_in(cloning.sft)
        )
        plan = planned(list(inputs), source, recipe, cloning)
        client = TrainingClient(model, runtime=platform, timeout_s=view.timeout_s)
        with shown(plan, model, as_json=view.as_json) as show:
            last = await run_plan(client, plan, recipe.learning_rate, show)
    if not view.as_json:
        moved = "head serves it" if last.is_head else "head did not move"
        print(f"{model}: v{last.version}, {last.checkpoint_id}, loss {loss_of(last):.4f}; {moved}")
    return Exit.OK


def planned(
    inputs: "Sequence[str | Conversation]", source: str, recipe: "Recipe", cloning: "Cloning"
) -> Plan:
    """Every epoch in its own order; cut at --steps if that is less. Raises CloningRefused."""
    if cloning.epochs < 1 or cloning.batch < 1 or (recipe.steps is not None and recipe.steps < 1):
        raise CloningRefused(
            f"--epochs {cloning.epochs}, --batch {cloning.batch}, --steps {recipe.steps}: each must be >= 1"
        )
    if not inputs:
        raise CloningRefused(f"{source} holds nothing to imitate")
    batches: list[tuple[str | Conversation, ...]] = []
    for epoch in range(cloning.epochs):
        order = list(inputs)
        random.Random(f"{recipe.seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
        batches += [tuple(order[at : at + cloning.batch]) for at in range(0, len(order), cloning.batch)]
    return Plan(source, tuple(batches[: recipe.steps]))


async def run_plan(client: Client, plan: Plan, learning_rate: float, show: "Show") -> "StepResult":
    """All steps; only the last one moves head. The last result."""
    last: StepResult | None = None
    for number, batch in enumerate(plan.batches, start=1):
        is_last = number == len(plan.batches)
        last = await client.step(batch, learning_rate=learning_rate, loss_fn=LOSS, promote=is_last)
        show(number, last)
    if last is None:
        raise CloningRefused(f"{plan.source} holds nothing to imitate")
    return last


def loss_of(result: "StepResult") -> float:
    """Mean cross-entropy of the step's trained tokens, nats."""
    return float(result.metrics.get("loss", float("nan")))


async def _chosen(platform: Platform, cloning: "Cloning") -> "tuple[str, Sequence[TrajectorySummary]]":
    """What is learnt from, and its trajectories; a file has none."""
    if cloning.sft is not None:
        return str(cloning.sft), ()
    from upcycle.cli.runs import resolve_run

    run_id = await resolve_run(platform, cloning.sft_from or "last")
    return run_id, successes([one async for one in _summaries(platform, run_id)], run_id)


async def _summaries(platform: Platform, run_id: str) -> "Any":
    from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter

    request = ListTrajectoriesRequest(filter=TrajectoryFilter(run_id=run_id), page_size=_PAGE)
    while True:
        page = await platform.trajectories.ListTrajectories(request, timeout=30)
        for one in page.trajectories:
            yield one
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def successes(summaries: "Iterable[TrajectorySummary]", run_id: str) -> "list[TrajectorySummary]":
    """What may and should be imitated, in a stable order. Raises CloningRefused for none."""
    from upcycle.api.common.v1.common_pb2 import SPLIT_HELD_OUT

    listed = list(summaries)
    graded = [one for one in listed if one.graded and one.success and not one.quarantine_reason]
    allowed = [one for one in graded if one.split != SPLIT_HELD_OUT]
    if not allowed:
        raise CloningRefused(
            f"none of the {len(listed)} trajectories of {run_id} can be imitated: {len(graded)} succeeded, "
            f"{len(graded) - len(allowed)} of these are of held-out tasks, which never train",
            "name a run over a taskset of split train, or over tasks that no taskset holds",
        )
    return sorted(allowed, key=lambda one: one.trajectory_id)


def conversations_in(path: Path) -> "Iterator[Conversation]":
    """The conversations of a JSONL file. Raises CloningRefused, naming the line."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _conversation(f"{path.name}:{number}", line)


def _conversation(name: str, line: str) -> "Conversation":
    from upcycle.train import Conversation

    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise CloningRefused(f"{name} is not JSON: {error}") from error
    messages = _messages(record)
    if messages is None:
        raise CloningRefused(
            f"{name} has neither `messages` nor `prompt` and `completion` as lists of messages",
            'write {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", …}]}',
        )
    if not any(message.get("role") == "assistant" for message in messages):
        raise CloningRefused(f"{name} has no assistant message: there is nothing to imitate")
    return Conversation(messages=messages, tools=record.get("tools") or (), name=name)


def _messages(record: Any) -> list[Mapping[str, Any]] | None:
    """The messages of a record; None where it has none."""
    if not isinstance(record, dict):
        return None
    names = ("messages",) if "messages" in record else ("prompt", "completion")
    messages: list[Mapping[str, Any]] = []
    for part in (record.get(name) for name in names):
        if not isinstance(part, list) or not all(isinstance(message, dict) for message in part):
            return None
        messages += part
    return messages


class Show(Protocol):
    """What to call after each step."""

    def __call__(self, number: int, result: "StepResult", /) -> None: ...


@contextmanager
def shown(plan: Plan, model: str, *, as_json: bool) -> Iterator[Show]:
    """JSON lines, a curve in a terminal, or a line per step."""
    console, losses, count = human(), list[float](), len(plan.batches)

    def line(number: int, result: "StepResult", /) -> None:
        losses.append(loss_of(result))
        text = f"step {number}/{count}  v{result.version}  loss {losses[-1]:.4f}  {sparkline(losses, 60)}"
        console.print(text, markup=False, end="\r" if console.is_terminal and number < count else "\n")

    def json_line(number: int, result: "StepResult", /) -> None:
        kind = "done" if number == count else "step"
        fields = {"version": result.version, "checkpoint_id": result.checkpoint_id, "is_head": result.is_head}
        print_json(kind, {"step": number, "steps": count, **fields, "metrics": dict(result.metrics)})

    if as_json:
        yield json_line
    else:
        console.print(f"{model} learns from {plan.source} in {count} steps", markup=False)
        yield line
