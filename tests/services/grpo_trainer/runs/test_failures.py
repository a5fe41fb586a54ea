"""A session that fails ends its run by one durable fact, alone, and no restart brings it back."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, refused, submission
from tests.services.grpo_trainer.crashes import Fuse, Killed, wired
from tests.support.waiting import until

from episodes import SessionFailure
from event_bus.errors import EventTooLarge, NotProvisioned, UnknownEvent
from grpo_trainer import views
from grpo_trainer.domain.errors import Diverged, LostRank
from grpo_trainer.domain.failures import detail_of, kind_of
from grpo_trainer.domain.following import Scales
from grpo_trainer.learner.protocol import BatchGroup, StepNumbers
from grpo_trainer.runs.deps import RunDeps
from service_kit.errors import Escaped
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.errors import Unavailable

FAILED = f"session.failed/{RUN}"
CLOSED = f"default/training/{MODEL}/{RUN}/closed.json"


def over() -> taskset_events.RunFinished:
    return taskset_events.RunFinished(run_id=RUN, model=MODEL)


def holds(world: World, key: str) -> Callable[[], bool]:
    return lambda: key in world.store.objects


def dies(of: BaseException, *, after: int = 0, method: str = "step") -> Callable[[RunDeps], RunDeps]:
    """Learners of RUN's model whose method raises, from call `after` + 1 on."""

    def change(deps: RunDeps) -> RunDeps:
        def new_learner() -> Any:
            learner: Any = deps.new_learner()
            inner, calls = getattr(learner, method), 0

            async def call(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > after and learner._model == MODEL:
                    raise of
                return await inner(*args)

            begin, resume = learner.begin, learner.resume

            async def begun(spec: Any, *args: Any) -> None:
                vars(learner)["_model"] = spec.model
                await (call if method == "begin" else begin)(spec, *args)

            async def resumed(spec: Any, *args: Any) -> None:
                vars(learner)["_model"] = spec.model
                await resume(spec, *args)

            vars(learner).update({method: call, "begin": begun, "resume": resumed})
            return learner

        return dataclasses.replace(deps, new_learner=new_learner)

    return change


def same(deps: RunDeps) -> RunDeps:
    return deps


async def rotten(world: World) -> None:
    for key in world.store.objects:
        if key.startswith(f"default/policies/{MODEL}/") and key.endswith(".safetensors"):
            world.store.objects[key] = b"rotten"


WAYS: list[tuple[dict[str, Any], Callable[[RunDeps], RunDeps], str, str]] = [
    ({"learning_rate": -1.0}, same, "invalid_spec", "learning_rate"),
    ({"loss": "pppo"}, same, "invalid_spec", "did you mean 'ppo'"),
    ({"gate": "gone"}, same, "error", "KeyError"),
    ({}, dies(Diverged("loss nan")), "diverged", "3 batches in a row"),
    ({}, dies(ValueError("a bug")), "error", "ValueError: a bug; the trainer's log has the traceback"),
    ({}, dies(asyncio.CancelledError("elsewhere")), "error", "Escaped: CancelledError('elsewhere')"),
    ({}, dies(MemoryError("none left")), "out_of_memory", "none left"),
    ({}, dies(MemoryError("no room"), method="begin"), "out_of_memory", "no room"),
]


@pytest.mark.parametrize(("config", "change", "kind", "text"), WAYS)
async def test_a_session_that_fails_ends_its_run_alone_and_for_good(
    world: World, config: dict[str, Any], change: Callable[[RunDeps], RunDeps], kind: str, text: str
) -> None:
    await world.publish_base(model="other", seed=4)
    world.stream.append(submission(**{"prompts_per_step": 1, **config}))
    await Episodes(world).groups(range(4))
    world.stream.append(submission(run_id="run-2", model="other", steps=1, prompts_per_step=1))
    await Episodes(world, run_id="run-2").group(0, MIXED)
    async with Trainer(world, change=change) as trainer:
        fact = await world.published(FAILED)
        await world.published("step.completed/run-2/1")  # neither the process nor the other run ended
        assert (fact.run_id, fact.model, fact.kind, fact.step) == (RUN, MODEL, kind, 0)
        assert text in fact.detail
        await until(lambda: views.find(trainer.sessions, RUN).state == training.SESSION_STATE_FAILED)
        assert trainer.sessions.waiting_for() is None
    await shown_and_published_again_until_closed(world, fact)


async def shown_and_published_again_until_closed(world: World, fact: events.SessionFailed) -> None:
    """Two more starts: the first publishes again and receives run.finished, the second only shows it."""
    world.stream.append(submission())  # a repeated submission begins nothing
    before = world.recorder.order.count(FAILED)
    async with Trainer(world) as trainer:
        await until(lambda: world.recorder.order.count(FAILED) == before + 1)
        view = views.find(trainer.sessions, RUN)
        assert (view.state, view.failure) == (training.SESSION_STATE_FAILED, fact.detail)
        assert (view.failure_kind, view.model, view.step) == (fact.kind, MODEL, fact.step)
        assert RUN not in [session.spec.run_id for session in trainer.sessions.all]
        world.stream.append(over())
        await until(lambda: CLOSED in world.store.objects)
    async with Trainer(world) as trainer:
        await refused(world, "run-after")
        assert (await views.stored(trainer.sessions, RUN)).failure_kind == fact.kind
    assert world.recorder.order.count(FAILED) == before + 1


async def test_an_unknown_model_and_a_rotten_base_fail_their_runs(tmp_path: Path) -> None:
    for spoil, kind, text in (
        ("heads", "invalid_spec", "is not registered"),
        ("base", "broken_artifact", "v0"),
    ):
        world = World(tmp_path / spoil)
        await world.publish_base()
        if spoil == "heads":
            world.heads.clear()
        else:
            await rotten(world)
        world.stream.append(submission())
        async with Trainer(world):
            fact = await world.published(FAILED)
        assert (fact.kind, text in fact.detail) == (kind, True)
        await shown_and_published_again_until_closed(world, fact)


@pytest.mark.parametrize("damage", ["state.json", ".safetensors"])
async def test_a_broken_state_fails_its_run_with_the_step_that_cannot_be_read(
    world: World, damage: str
) -> None:
    world.stream.append(submission(steps=9, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/1")
    for key in world.store.objects:
        if "step-00000001/" in key and key.endswith(damage):
            world.store.objects[key] = b"rotten"
    async with Trainer(world):
        fact = await world.published(FAILED)
    assert (fact.kind, fact.step) == ("broken_artifact", 1)
    await shown_and_published_again_until_closed(world, fact)


async def test_events_of_durable_steps_precede_the_failure_and_none_follows_it(world: World) -> None:
    world.stream.append(submission(steps=9, prompts_per_step=1, max_staleness=9))
    await Episodes(world).groups(range(4))
    async with Trainer(world, change=dies(ValueError("a bug"), after=2)) as trainer:
        fact = await world.published(FAILED)
        await Episodes(world).group(5, (1.0,) * 4)  # would be settled at once
        world.stream.append(over())
        await until(lambda: CLOSED in world.store.objects)
        assert trainer.sessions.get(RUN).failure == fact.detail
    assert fact.step == 2
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1, 2]
    assert world.recorder.order[-1] == FAILED
    kept = {key.split("/")[4] for key in world.store.objects if key.startswith("default/training/")}
    assert kept == {"step-00000002", "failed.json", "closed.json"}


async def test_a_failure_is_published_though_another_session_computes(world: World) -> None:
    """The learner's thread is shared: what another session computes there must not delay the event."""
    computed = threading.Event()

    def change(deps: RunDeps) -> RunDeps:
        def new_learner() -> Any:
            learner: Any = deps.new_learner()

            async def step(groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
                asyncio.get_running_loop().create_task(learner._thread.run(lambda: computed.wait(60)))
                raise ValueError("a bug")

            vars(learner)["step"] = step
            return learner

        return dataclasses.replace(deps, new_learner=new_learner)

    world.stream.append(submission(prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world, change=change):
        try:
            await world.published(FAILED)
        finally:
            computed.set()


class FailingBus:
    """A bus that raises so many errors, then publishes."""

    def __init__(self, world: World, *errors: Exception) -> None:
        self.decide, self.standing = world.recorder.decide, world.recorder.standing
        self.tries = 0
        self._world = world
        self._errors = errors

    async def publish(self, *args: Any, **names: Any) -> object:
        self.tries += 1
        if self.tries <= len(self._errors):
            raise self._errors[self.tries - 1]
        return await self._world.recorder.publish(*args, **names)

    def change(self, deps: RunDeps) -> RunDeps:
        vars(deps.facts)["_bus"] = self
        return deps


GONE, BUG = Unavailable("gone"), ValueError("a bug in the client")


@pytest.mark.parametrize("errors", [(GONE, GONE, GONE), (BUG,), (NotProvisioned("no stream"), GONE)])
async def test_the_failure_is_repeated_until_the_bus_stores_it(
    world: World, errors: tuple[Exception, ...]
) -> None:
    bus = FailingBus(world, *errors)
    world.stream.append(submission(loss="pppo"))
    async with Trainer(world, change=bus.change) as trainer:
        await until(lambda: bus.tries > 0)
        assert trainer.sessions.waiting_for() is None  # readiness does not wait for a failed session
        await world.published(FAILED)
    assert bus.tries == len(errors) + 1


@pytest.mark.parametrize("error", [EventTooLarge("2 MiB"), UnknownEvent("token is 201 characters long")])
async def test_a_failure_that_can_never_be_published_is_given_up_with_a_log_line(
    world: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bus = FailingBus(world, error)
    world.stream.append(submission(loss="pppo"))

    def given_up() -> bool:
        return any(one.getMessage() == "failure_not_published" for one in caplog.records)

    async with Trainer(world, change=bus.change):
        await until(given_up)
        world.stream.append(over())
        await until(holds(world, CLOSED))
    assert bus.tries == 1
    assert FAILED not in world.recorder.events


@pytest.mark.parametrize("at_submission", [True, False])
async def test_a_kill_before_any_write_of_a_failure_loses_nothing(
    tmp_path: Path, at_submission: bool
) -> None:
    """Also where nothing was durable: then the replay begins at the submission again."""
    config = {"learning_rate": -1.0} if at_submission else {"loss": "pppo"}
    for writes in range(4):
        world = World(tmp_path / f"{writes}")
        await world.publish_base()
        world.stream.append(submission(**config))
        await world.publish_base(model="other", seed=4)  # goes on, and must not take the cursor past it
        world.stream.append(submission(run_id="run-2", model="other", steps=1, prompts_per_step=1))
        await Episodes(world, run_id="run-2").group(0, MIXED)
        async with Trainer(world, change=wired(Fuse(writes))) as trainer:
            assert isinstance(await trainer.death(), Killed)
        world.stream.append(over())
        async with Trainer(world):
            await world.published("step.completed/run-2/1")
            await until(holds(world, CLOSED))
        assert f"default/training/{MODEL}/{RUN}/failed.json" in world.store.objects


async def test_a_run_that_was_never_opened_is_found_though_all_others_are_over(world: World) -> None:
    """A refused run closes fast; a run that was submitted before it and still loads must survive a kill."""
    opening = asyncio.Event()

    def change(deps: RunDeps) -> RunDeps:
        head = deps.policies.head

        async def slow(model: str) -> Any:
            if model == MODEL:
                opening.set()
                await asyncio.sleep(600)
            return await head(model)

        vars(deps.policies)["head"] = slow
        return deps

    world.stream.append(submission(steps=1, prompts_per_step=1))
    world.stream.append(submission(run_id="run-2", model="other", loss="pppo"))
    world.stream.append(submission(run_id="run-3", model="other", learning_rate=-1.0))
    async with Trainer(world, change=change):
        await opening.wait()
        await world.published("session.failed/run-2")
        await world.published("session.failed/run-3")
        for run in ("run-2", "run-3"):
            world.stream.append(taskset_events.RunFinished(run_id=run, model="other"))
            await until(holds(world, f"default/training/other/{run}/closed.json"))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(f"step.completed/{RUN}/1")


async def test_an_error_while_the_process_stops_fails_no_run(world: World) -> None:
    stepping = asyncio.Event()

    def change(deps: RunDeps) -> RunDeps:
        def new_learner() -> Any:
            learner = deps.new_learner()

            async def step(groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
                stepping.set()
                await until(lambda: trainer.sessions._stopping)
                raise RuntimeError("cannot schedule new futures after shutdown")

            vars(learner)["step"] = step
            return learner

        return dataclasses.replace(deps, new_learner=new_learner)

    world.stream.append(submission(steps=1, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world, change=change) as trainer:
        await stepping.wait()
    assert not world.recorder.order
    async with Trainer(world):
        await world.published(f"step.completed/{RUN}/1")


async def test_a_lost_rank_ends_the_process_and_fails_no_run(world: World) -> None:
    world.stream.append(submission(steps=1, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world, change=dies(LostRank("rank 1 is gone"))) as trainer:
        assert isinstance(await trainer.death(), LostRank)
    assert not world.recorder.order


async def test_a_failure_record_that_cannot_be_read_still_keeps_the_run_from_going_on(world: World) -> None:
    world.stream.append(submission(loss="pppo"))
    async with Trainer(world):
        await world.published(FAILED)
    world.store.objects[f"default/training/{MODEL}/{RUN}/failed.json"] = b"{"
    world.recorder.events.clear()
    async with Trainer(world):
        fact = await world.published(FAILED)
    assert (fact.kind, "failed.json" in fact.detail) == ("error", True)


def test_a_long_text_is_cut_and_an_empty_one_has_a_name() -> None:
    assert len(detail_of(Diverged("x" * 100_000))) == 4000
    assert detail_of(Diverged()) == "Diverged"
    assert kind_of(KeyError("x")) is SessionFailure.ERROR


class CancelledStates:
    """States whose record of a failure is cancelled from elsewhere."""

    def __init__(self, states: Any) -> None:
        self._states = states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._states, name)

    async def record_failure(self, failure: object) -> None:
        raise asyncio.CancelledError("elsewhere")


async def test_background_work_that_is_cancelled_from_elsewhere_ends_the_process(world: World) -> None:
    world.stream.append(submission(learning_rate=-1.0))
    change = lambda deps: dataclasses.replace(deps, states=CancelledStates(deps.states))  # noqa: E731
    async with Trainer(world, change=change) as trainer:
        assert isinstance(await trainer.death(), Escaped)
