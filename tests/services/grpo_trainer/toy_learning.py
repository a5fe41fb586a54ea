"""A toy policy learns a toy task by the trainer's own learner, on policy or behind by a fixed lag."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from tests.services.grpo_trainer import toy_policy
from tests.services.grpo_trainer.toy_tasks import TASKS
from torch import Tensor

from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner

STARTS: Final = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Lesson:
    """One training run. lag: optimizer steps between the weights that sample and the weights in training."""

    task: str
    steps: int
    prompts: int = 32
    group_size: int = 8
    learning_rate: float = 3e-4
    loss: str = "ppo"
    loss_config: Mapping[str, float] = field(default_factory=dict)
    lag: int = 0
    seed: int = 0
    look_every: int = 0
    """Steps between two looks at the success; 0: only at the end."""

    @property
    def start(self) -> Path:
        """The cloned policy that it begins from."""
        return STARTS / f"{self.task}_start.safetensors"

    def spec(self) -> TrainingSpec:
        """What a run would ask of the trainer."""
        return TrainingSpec(
            f"run-{self.task}",
            "toy",
            self.group_size,
            prompts_per_step=self.prompts,
            learning_rate=self.learning_rate,
            lr_schedule="constant",
            drift_groups=0,
            loss=self.loss,
            loss_config=self.loss_config,
            seed=self.seed,
        )


@dataclass(slots=True)
class Report:
    """success: by number of steps (0: the start), sampled; greedy: at the end; metrics: of applied steps."""

    success: dict[int, float] = field(default_factory=dict)
    greedy: float = 0.0
    metrics: list[Mapping[str, float]] = field(default_factory=list)

    def longest(self, name: str, above: float) -> int:
        """Most steps in a row in which a metric was above a value."""
        best = run = 0
        for values in self.metrics:
            run = run + 1 if values[name] > above else 0
            best = max(best, run)
        return best


async def learn(
    lesson: Lesson, *, on_success: Callable[[int, float], None] = lambda step, success: None
) -> Report:
    """Play, step, export, play again. on_success: called with every success that is measured."""
    actor = toy_policy.load_start(lesson.start)
    report = Report()
    with one_thread(), tempfile.TemporaryDirectory() as scratch:
        report.success[0] = toy_policy.success(actor, lesson.task)
        actor.save_pretrained(Path(scratch) / "base")
        thread = LearnerThread(LearnerOptions(num_threads=1))
        learner = TorchLearner(thread)
        try:
            await learner.begin(lesson.spec(), Path(scratch) / "base")
            await _lessons(lesson, actor, learner, Path(scratch), report, on_success)
        finally:
            await learner.close()
            thread.close()
        report.greedy = toy_policy.success(actor, lesson.task, greedy=True)
    return report


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, whatever the machine: equal seeds, equal curves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


async def _lessons(
    lesson: Lesson,
    actor: Any,
    learner: TorchLearner,
    folder: Path,
    report: Report,
    on_success: Callable[[int, float], None],
) -> None:
    generator, seeds = torch.Generator().manual_seed(lesson.seed + 11), random.Random(lesson.seed + 12)
    versions: deque[dict[str, Tensor]] = deque(maxlen=lesson.lag + 1)
    versions.append(_copied(actor.state_dict()))
    for step in range(1, lesson.steps + 1):
        actor.load_state_dict(versions[0], strict=False)
        drawn = [seeds.randrange(1 << 30) for _ in range(lesson.prompts)]
        tasks = [TASKS[lesson.task](seed) for seed in drawn for _ in range(lesson.group_size)]
        groups = toy_policy.groups_of(toy_policy.play(actor, tasks, generator), lesson.group_size)
        if groups:
            report.metrics.append((await learner.step(groups)).values)
        await (await learner.snapshot()).export(folder / "now")
        versions.append(_copied(load_file(folder / "now" / "model.safetensors")))
        if step == lesson.steps or (lesson.look_every and step % lesson.look_every == 0):
            actor.load_state_dict(versions[-1], strict=False)
            report.success[step] = toy_policy.success(actor, lesson.task)
            on_success(step, report.success[step])


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}
