"""Training runs that are followed on held-out sets: what is ordered when, what is read, what ends a run.

The reward of these runs is a proxy: it rises to the end, and what is true rises with it until step 5, and
falls then.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.services.scenario_runner.source_runs import SourcesHarness, graded, settled, train_spec

from episodes import Purpose, Split
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.facts import Advanced, Stopping
from scenario_runner.domain.runs import Prices, Refused, RunState
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.usecases.revisions import store
from scenario_runner.usecases.submitting import SubmitRun, TraceContext
from scenario_runner.usecases.tracking import IN_FLIGHT, TrackRuns
from scenario_runner.wire.runs import run_to_wire
from upcycle.api.taskset.v1.taskset_pb2 import TrackedRate
from upcycle.errors import Unavailable
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.run_config import RunSpec

TASKS = 12
TRUTH: Mapping[int, int] = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8, 6: 3, 7: 0, 8: 0}
"""Held-out tasks that the version of a step solves: the first ones."""


def proxy(step: int) -> float:
    """The training reward of a step."""
    return 0.2 + 0.07 * step


class TrackingHarness:
    """A training run of one group a step, and what plays its evaluations."""

    def __init__(self, sources: SourcesHarness) -> None:
        self.sources, self.planner = sources, sources.planner
        self.submit = SubmitRun(
            self.planner.plan,
            sources.registry,
            new_id=lambda kind: f"{kind}-t{next(self.numbers):03d}",
            wake=lambda: None,
        )
        self.numbers = itertools.count(1)
        self.track = TrackRuns(self.planner.plan, self.submit)
        self.run_id = ""
        self.impossible = 0
        """Of the tasks, the last ones."""

    async def register(self, name: str, split: Split = Split.HELD_OUT) -> None:
        """Three families of four tasks."""
        families = [f"family-{n // 4}" for n in range(TASKS - self.impossible)]
        families += [IMPOSSIBLE_FAMILY] * self.impossible
        tasks = tuple(
            RunnableTask(f"{name}-{n:02d}", "s", "{}", family, f"{name}-{n}".rjust(64, "0"))
            for n, family in enumerate(families)
        )
        source = PythonEnvironment("e", "/e.py")
        made = RegisteredTaskset(name, name.rjust(64, "0"), split, source, TASKS, tasks)
        await self.planner.do(lambda unit: store(unit, made))

    async def begin(self, *track: str, stop_on: str = "", steps: int = 10) -> None:
        await self.register("held")
        spec = replace(train_spec(prompts=1, steps=steps), track=track, stop_on=stop_on)
        self.run_id = (await self.submit("r", spec, TraceContext("", {}))).run.run_id

    async def step(self, step: int, *, engine_s: float = 0.0) -> None:
        """The trainer completes a step, whose group earned what the proxy pays."""
        await self.sources.plan(self.run_id)
        group = await self.sources.next_group(self.run_id)
        assert group is not None
        members = [f"{group}-e{member:03d}-a0" for member in range(2)]
        facts = [graded(self.run_id, one, step - 1, float(at)) for at, one in enumerate(members)]
        await self.planner.apply(*(replace(one, engine_s=engine_s) for one in facts))
        trained = tuple(members)
        await self.planner.apply(settled(self.run_id, group, source="", step=step))
        reward, drift = proxy(step), 0.01 * step
        await self.planner.apply(Advanced(self.run_id, step, 100 + step, 1.0, trained, reward, drift))
        await self.widen(step)

    async def widen(self, step: int) -> None:
        """A step of real size has hundreds of episodes, not two."""
        rows = await self.planner.do(lambda unit: unit.tracked.of(self.run_id))
        for row in (row for row in rows if row.step == step):
            wider = replace(row, num_trained=512)
            await self.planner.do(lambda unit, wider=wider: unit.tracked.update(wider))  # type: ignore[misc]

    async def look(self) -> str:
        """The tracker looks once; the id of the evaluation that is played then."""
        await self.track()
        playing = [one for one in await self.rates() if one.state == "playing"]
        assert len(playing) <= 1
        return playing[0].run_id if playing else ""

    async def play(self, run_id: str, *, engine_s: float = 0.0) -> None:
        """The evaluation is played to its end, as well as its version can."""
        version = (await self.spec(run_id)).policy.pinned_version or 0
        while True:
            await self.sources.plan(run_id)
            rows = await self.planner.do(lambda unit: unit.unsettled(run_id))
            if not rows:
                break
            assert len(rows) <= IN_FLIGHT
            solved = TRUTH[version - 100]
            facts = [
                graded(run_id, row.episode_id, version, float(row.task_position < solved)) for row in rows
            ]
            await self.planner.apply(*(replace(one, engine_s=engine_s) for one in facts))
        await self.track()

    async def spec(self, run_id: str) -> RunSpec:
        return (await self.sources.run(run_id)).spec

    async def rates(self) -> list[TrackedRate]:
        return list(run_to_wire(await self.sources.view(self.run_id), Prices()).tracked)

    async def follow(self, last: int) -> None:
        """Steps up to this one, or to where the run ended, with each evaluation played before the next."""
        for step in range(1, last + 1):
            if (await self.sources.run(self.run_id)).ending is not None:
                return
            await self.step(step)
            if run_id := await self.look():
                await self.play(run_id)


ON_SQLITE = pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
"""What takes many steps; the others run on Postgres as well."""


@pytest.fixture
def tracking(sources: SourcesHarness) -> TrackingHarness:
    return TrackingHarness(sources)


async def test_every_k_steps_the_version_of_that_step_is_measured_beside_reward_and_drift(
    tracking: TrackingHarness,
) -> None:
    await tracking.begin("held:every=2")
    await tracking.follow(4)
    first, second = await tracking.rates()
    assert (first.step, first.version, first.taskset, first.state) == (2, 102, "held", "played")
    assert (first.rate, first.num_tasks) == (5 / 12, 12)
    assert first.low < 5 / 12 < first.high
    assert (second.step, second.rate) == (4, 7 / 12)
    assert (second.reward_mean, second.drift_kl) == (proxy(4), 0.04)
    spec = await tracking.spec(first.run_id)
    assert (spec.policy.pinned_version, spec.group_size, spec.max_concurrent) == (102, 1, IN_FLIGHT)
    assert spec.sampling == (await tracking.spec(second.run_id)).sampling  # the same seeds
    assert (await tracking.sources.run(first.run_id)).split is Split.HELD_OUT


@ON_SQLITE
async def test_tasks_without_a_solution_have_no_rate(tracking: TrackingHarness) -> None:
    tracking.impossible = 4
    await tracking.begin("held:every=2")
    await tracking.follow(2)
    (point,) = await tracking.rates()
    assert (point.state, point.rate, point.num_tasks) == ("played", 5 / 8, 8)


@ON_SQLITE
async def test_one_is_played_at_a_time_and_what_fell_behind_is_skipped(tracking: TrackingHarness) -> None:
    await tracking.register("bench")
    await tracking.begin("held:every=1", "bench:every=2")
    await tracking.step(1)
    first = await tracking.look()
    for step in (2, 3, 4):
        await tracking.step(step)
        assert await tracking.look() == first  # it is still played
    await tracking.play(first)
    second = await tracking.look()
    assert (await tracking.spec(second)).taskset == "bench"  # which has waited longest
    states = {(one.taskset, one.step): one.state for one in await tracking.rates()}
    assert states == {
        ("held", 1): "played",
        ("held", 2): "skipped",
        ("held", 3): "skipped",
        ("held", 4): "due",
        ("bench", 2): "skipped",
        ("bench", 4): "playing",
    }


async def test_a_restart_orders_nothing_twice(tracking: TrackingHarness) -> None:
    await tracking.begin("held:every=1")
    await tracking.step(1)
    first = await tracking.look()
    row = (await tracking.planner.do(lambda unit: unit.tracked.of(tracking.run_id)))[0]
    lost = replace(row, state=type(row.state).DUE, eval_run_id="")  # as before the commit
    await tracking.planner.do(lambda unit: unit.tracked.update(lost))
    await tracking.play(first)
    tracking.track = TrackRuns(tracking.planner.plan, tracking.submit)
    await tracking.look()
    assert [one.run_id for one in await tracking.rates()] == [first]


@ON_SQLITE
async def test_training_and_gates_come_first(tracking: TrackingHarness) -> None:
    await tracking.begin("held:every=1")
    gate = await tracking.sources.submit(
        replace(
            await tracking.spec(tracking.run_id),
            taskset="held",
            purpose=Purpose.EVAL,
            training=None,
            track=(),
        )
    )
    await tracking.step(1, engine_s=50.0)
    assert await tracking.look() == ""  # while another evaluation of the model is played
    await tracking.sources.play(gate)
    await tracking.play(await tracking.look(), engine_s=1.0)  # 12 s, of 100 s of training
    await tracking.step(2, engine_s=5.0)
    assert await tracking.look() == ""  # more than a tenth of 110 s is spent
    await tracking.step(3, engine_s=10.0)
    assert await tracking.look()


@ON_SQLITE
async def test_a_proxy_that_parts_from_the_truth_is_an_alarm(tracking: TrackingHarness) -> None:
    await tracking.begin("held:every=1")
    await tracking.follow(5)
    assert not run_to_wire(await tracking.sources.view(tracking.run_id), Prices()).tracking_alarms
    for step in (6, 7, 8):
        await tracking.step(step)
        await tracking.play(await tracking.look())
    run = run_to_wire(await tracking.sources.view(tracking.run_id), Prices())
    (said,) = run.tracking_alarms
    assert said.startswith("reward up, benchmark not: since step ")
    assert [one.dropped for one in run.tracked] == [False] * 5 + [True] * 3
    assert not run.ended_by_drops  # stop_on is off by default
    assert (await tracking.sources.run(tracking.run_id)).ending is None


@ON_SQLITE
async def test_two_drops_end_the_run_early_as_completed_with_its_worst_families(
    tracking: TrackingHarness,
) -> None:
    await tracking.begin("held:every=1", stop_on="two_drops")
    await tracking.follow(10)
    run = await tracking.sources.run(tracking.run_id)
    assert (run.step, run.ending, run.state) == (7, RunState.COMPLETED, RunState.DRAINING)
    await tracking.planner.apply(Stopping(tracking.run_id))
    run = await tracking.sources.run(tracking.run_id)
    assert run.state is RunState.COMPLETED
    last = (await tracking.rates())[-1].run_id
    assert run.failure == (
        "ended early: held fell twice in a row: 66.7% at step 5, 25.0% at step 6, 0.0% at step 7; worst: "
        f"family-0 -100.0% (upcycle trajectories list --run {last} --family family-0); "
        f"family-1 -100.0% (upcycle trajectories list --run {last} --family family-1)"
    )
    assert run_to_wire(await tracking.sources.view(tracking.run_id), Prices()).ended_by_drops


@ON_SQLITE
async def test_the_last_version_is_measured_after_the_run(tracking: TrackingHarness) -> None:
    await tracking.begin("held:every=2", steps=2)
    await tracking.step(1)
    await tracking.step(2)
    assert (await tracking.sources.run(tracking.run_id)).state is RunState.COMPLETED
    await tracking.play(await tracking.look())
    assert [(one.step, one.rate) for one in await tracking.rates()] == [(2, 5 / 12)]


@ON_SQLITE
async def test_a_version_that_is_refused_is_tried_again_and_given_up_after_the_run(
    tracking: TrackingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def removed(policy: object) -> None:
        raise Refused("v102 of m was removed by retention")

    await tracking.begin("held:every=2", steps=2)
    await tracking.step(1)
    await tracking.step(2)
    monkeypatch.setattr(tracking.sources.registry, "check_policy", removed)
    assert await tracking.look() == ""
    assert [one.state for one in await tracking.rates()] == ["due"]
    tracking.planner.now += timedelta(seconds=121)
    await tracking.look()
    assert [(one.state, one.detail) for one in await tracking.rates()] == [
        ("failed", "v102 of m was removed by retention")
    ]
    assert await tracking.planner.do(lambda unit: unit.tracked.open_runs()) == []


@ON_SQLITE
async def test_only_held_out_tasks_are_followed(tracking: TrackingHarness) -> None:
    await tracking.register("loose", Split.UNASSIGNED)
    with pytest.raises(Refused, match="'loose' is of split unassigned; a run is followed on held-out"):
        await tracking.begin("loose")


async def test_a_run_that_cannot_be_followed_keeps_no_other_waiting(
    tracking: TrackingHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in one, or a row that nothing can read; without care it ended the service."""
    await tracking.begin("held:every=1")
    await tracking.step(1)
    broken = "run-a-broken"  # comes first
    rows = await tracking.planner.do(lambda unit: unit.tracked.of(tracking.run_id))
    await tracking.planner.do(lambda unit: unit.tracked.add(replace(rows[0], run_id=broken)))
    look = tracking.track._look_at

    async def looking(run_id: str) -> None:
        if run_id == broken:
            raise ZeroDivisionError("a bug")
        await look(run_id)

    tracking.track._look_at = looking  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="tracking of run-a-broken: ZeroDivisionError"):
        await tracking.track()
    assert [one.state for one in await tracking.rates()] == ["playing"]
