"""The learning rate over a run: worked by hand, as transformers has it, resumed in its place, refused where
it cannot be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.services.grpo_trainer.batches import policy, rollouts
from tests.services.grpo_trainer.bench import MODEL, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.learners import begun, options, thread_of, weights
from tests.support.waiting import until
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from grpo_trainer import views, wire
from grpo_trainer.domain.errors import Diverged, InvalidTrainingSpec
from grpo_trainer.domain.following import UNSCALED, Scales
from grpo_trainer.domain.schedules import Schedule
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.learner.interactive import TorchInteractiveLearner
from grpo_trainer.learner.torch_learner import LearnerThread, TorchLearner
from training_states.files import read_tensors
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.api.training.v1 import training_pb2 as training

RATE = 1e-2
SCHEDULES_OF_TRANSFORMERS: dict[str, Callable[..., LRScheduler]] = {
    "linear": get_linear_schedule_with_warmup,
    "cosine": get_cosine_schedule_with_warmup,
}


def spec(**changes: Any) -> TrainingSpec:
    given: dict[str, Any] = {"steps": 4, "learning_rate": RATE, **changes}
    return training_spec(run_id="run-0", model=MODEL, group_size=4, **given)


@pytest.fixture(scope="module")
def thread() -> Iterator[LearnerThread]:
    with thread_of(options(1)) as made:
        yield made


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule("constant", 4, 0, 0.0), [1, 1, 1, 1]),
        (Schedule("constant", 5, 3, 0.0), [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        (Schedule("linear", 4, 0, 0.0), [1, 3 / 4, 2 / 4, 1 / 4]),
        (Schedule("linear", 6, 2, 0.0), [1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4]),
        (Schedule("linear", 4, 0, 0.2), [1, 0.8, 0.6, 0.4]),
        # (1 + cos 60 degrees) / 2 is 3/4, at 120 degrees 1/4.
        (Schedule("cosine", 3, 0, 0.0), [1, 3 / 4, 1 / 4]),
        (Schedule("cosine", 4, 1, 0.5), [1 / 2, 1, 7 / 8, 5 / 8]),
    ],
)
def test_rates_of_worked_examples(schedule: Schedule, expected: list[float]) -> None:
    assert [schedule.factor(done) for done in range(schedule.steps)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_fall_is_that_of_transformers_and_the_rise_begins_above_zero(name: str) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs: LRScheduler = SCHEDULES_OF_TRANSFORMERS[name](optimizer, 5, 40)
    rates = []
    for _ in range(40):
        rates.append(float(theirs.get_last_lr()[0]))
        optimizer.step()
        theirs.step()
    ours = [Schedule(name, 40, 5, 0.0).factor(done) for done in range(40)]
    assert ours[5:] == pytest.approx(rates[5:], abs=1e-12)
    assert (rates[0], ours[0]) == (0.0, 1 / 6)
    assert min(ours) > 0
    assert Schedule(name, 40, 5, 0.0).factor(41) == 0.0
    assert Schedule(name, 40, 5, 0.25).factor(41) == 0.25


REFUSED = [
    ({"lr_schedule": "polynomial"}, "'polynomial' does not exist; known: constant, cosine, linear"),
    ({"warmup_steps": -1}, "warmup_steps must be >= 0 and <= .*got -1"),
    ({"warmup_steps": 5}, r"below steps \(4\), got 5"),
    ({"warmup_steps": 4}, "some step must have the full rate"),
    ({"lr_schedule": "cosine", "min_lr_fraction": 1.5}, "min_lr_fraction must be >= 0 and <= 1, got 1.5"),
    ({"lr_schedule": "linear", "min_lr_fraction": float("nan")}, "min_lr_fraction must be .* got nan"),
    ({"lr_schedule": "constant", "min_lr_fraction": 0.1}, "a constant rate falls to nothing less"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_an_invalid_schedule_is_refused_at_the_start(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTrainingSpec, match=reason):
        spec(**config)


def test_a_schedule_comes_with_the_run_and_is_part_of_its_digest() -> None:
    asked = submission(steps=9, lr_schedule="cosine", warmup_steps=2, min_lr_fraction=0.1)
    assert wire.spec_from_wire(asked).schedule == Schedule("cosine", 9, 2, 0.1)
    assert wire.spec_from_wire(submission(steps=9)).schedule == Schedule("linear", 9, 0, 0.0)
    assert wire.spec_from_wire(submission(steps=0)).schedule.is_flat
    different = [
        spec(lr_schedule="constant"),
        spec(lr_schedule="constant", warmup_steps=1),
        spec(lr_schedule="linear"),
        spec(lr_schedule="linear", min_lr_fraction=0.5),
    ]
    assert len({one.digest() for one in different}) == 4


def test_a_run_of_0_3_0_keeps_its_digest_and_a_default_of_today_has_another() -> None:
    """It left out learning_rate 1e-5 and lr_schedule constant, which were its defaults."""
    before = TrainingSpec("run-0", MODEL, 4, learning_rate=1e-5, lr_schedule="constant")
    plain = {"run_id": "run-0", "model": MODEL, "group_size": 4}
    assert before.digest() == hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    assert TrainingSpec("run-0", MODEL, 4).digest() != before.digest()


def test_the_rate_is_chosen_by_what_trains() -> None:
    full, adapters = TrainingSpec("run-0", MODEL, 4), TrainingSpec("run-0", MODEL, 4, lora_rank=8)
    assert (full.learning_rate, adapters.learning_rate) == (1e-6, 1e-5)
    assert spec(lora_rank=8).learning_rate == RATE


async def test_interactive_updates_bring_their_own_rates(thread: LearnerThread, tmp_path: Path) -> None:
    learner = TorchInteractiveLearner(thread)
    with pytest.raises(InvalidTrainingSpec, match="give each optim_step its learning_rate"):
        await learner.begin(spec(lr_schedule="linear"), policy(tmp_path / "base"))


async def test_the_optimizer_takes_the_rate_and_the_step_says_it(
    thread: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    moved = []
    for number, of in enumerate((spec(), spec(warmup_steps=1))):
        async with begun(thread, base, of) as learner:
            before = await weights(learner, tmp_path / f"before-{number}")
            assert (await learner.step(rollouts(0))).values["learning_rate"] == of.schedule.factor(0) * RATE
            after = await weights(learner, tmp_path / f"after-{number}")
        moved.append({name: after[name].double() - before[name].double() for name in before})
    full, half = moved
    assert all(torch.allclose(full[name], 2 * half[name], atol=1e-6) for name in full)


async def test_a_batch_that_is_not_applied_leaves_the_rate(thread: LearnerThread, tmp_path: Path) -> None:
    of = spec(lr_schedule="linear")
    async with begun(thread, policy(tmp_path / "base"), of) as learner:
        rates = []
        for seed, reward in enumerate((1.0, 1e300, 1.0)):
            try:
                rates.append((await learner.step(rollouts(seed, reward=reward))).values["learning_rate"])
            except Diverged:
                rates.append(0.0)
    assert rates == pytest.approx([RATE, 0.0, 0.75 * RATE])


@pytest.mark.parametrize("lora_rank", [0, 2])
async def test_a_resumed_run_goes_on_in_its_place_with_the_same_bits(
    thread: LearnerThread, tmp_path: Path, lora_rank: int
) -> None:
    base = policy(tmp_path / "base")
    of = spec(lr_schedule="cosine", warmup_steps=1, min_lr_fraction=0.1, lora_rank=lora_rank)
    async with begun(thread, base, of) as learner:
        rates = [(await learner.step(rollouts(seed))).values["learning_rate"] for seed in range(2)]
        await (await learner.snapshot()).save(tmp_path / "state")
        rates += [(await learner.step(rollouts(seed))).values["learning_rate"] for seed in (2, 3)]
        expected = await weights(learner, tmp_path / "expected")
    assert rates == pytest.approx([0.5 * RATE, RATE, 0.775 * RATE, 0.325 * RATE])
    assert "scheduler/state" in read_tensors(tmp_path / "state")
    resumed = TorchLearner(thread)
    await resumed.resume(of, base, tmp_path / "state")
    again = [(await resumed.step(rollouts(seed))).values["learning_rate"] for seed in (2, 3)]
    found = await weights(resumed, tmp_path / "found")
    await resumed.close()
    assert again == rates[2:]
    assert all(torch.equal(expected[name], found[name]) for name in expected)


async def test_each_step_of_a_run_reports_its_rate_also_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.publish_base()
    world.stream.append(submission(steps=3, prompts_per_step=1, lr_schedule="linear", warmup_steps=1))
    for index in range(3):
        async with Trainer(world):  # a process per step
            await Episodes(world).group(index, (1.0, 0.0, 0.0, 1.0))
            await world.published(f"step.completed/run-0000000000ab/{index + 1}")
    rates = [one.metrics.values["learning_rate"] for one in world.recorder.of(events.StepCompleted)]
    assert rates == pytest.approx([0.5e-2, 1e-2, 0.5e-2])


async def test_a_run_that_asks_for_no_curve_is_refused_with_the_reason(world: World) -> None:
    world.stream.append(submission(lr_schedule="cubic"))
    async with Trainer(world) as trainer:
        await until(lambda: trainer.sessions.failed, "the run to be refused")
        (view,) = views.every(trainer.sessions)
    assert view.state == training.SESSION_STATE_FAILED
    assert "lr_schedule 'cubic' does not exist; known: constant, cosine, linear" in view.failure


async def test_a_scaled_step_leaves_the_schedule_where_it_is(thread: LearnerThread, tmp_path: Path) -> None:
    base, of, moved = policy(tmp_path / "base"), spec(lr_schedule="linear"), []
    for number, given in enumerate((UNSCALED, Scales(rate=0.5))):
        async with begun(thread, base, of) as learner:
            before = await weights(learner, tmp_path / f"before-{number}")
            rates = [(await learner.step(rollouts(0), given)).values["learning_rate"]]
            after = await weights(learner, tmp_path / f"after-{number}")
            with pytest.raises(Diverged):
                await learner.step(rollouts(1, reward=1e300), Scales(rate=0.1))
            rates.append((await learner.step(rollouts(2))).values["learning_rate"])
        moved.append({name: after[name].double() - before[name].double() for name in before})
        assert rates == pytest.approx([given.rate * RATE, 0.75 * RATE])
    assert all(torch.allclose(moved[0][name], 2 * moved[1][name], atol=1e-6) for name in moved[0])
