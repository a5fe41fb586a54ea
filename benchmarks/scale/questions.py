"""What is asked of a platform, one question at a time."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from benchmarks.scale.platform import Platform
from benchmarks.scale.size import GROUP_SIZE, run_name
from benchmarks.scale.tables import DIGEST, PROFILE, TASKSET
from blob_store import BlobRef
from checkpoint_registry.domain.jobs import JobPhase
from episodes import EpisodeIdentity, Purpose, Split
from identities import entities, objects
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.facts import Graded
from scenario_runner.domain.runs import EpisodeState
from scenario_runner.usecases.overdue import overdue_ids
from scenario_runner.usecases.planning import PlanRules, apply_facts, plan_more, sweep
from scenario_runner.usecases.submitting import TraceContext
from service_kit.clock import utc_now
from trajectory_store.domain.facts import (
    EpisodeFact,
    TrajectoryGrade,
    TrajectoryRecord,
    graded,
    recorded,
    requested,
)
from trajectory_store.domain.queries import PageKey, TrajectoryFilter
from trajectory_store.domain.retention import Removable
from upcycle.run_config import PolicyChoice, RunSpec

_RULES: Final = PlanRules(eval_episodes_in_flight=64)
_TRACE: Final = TraceContext("", {})
_EXPORTED: Final = 1_000
_US: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Question:
    """share: of the repetitions; a question that takes long is asked less often."""

    name: str
    ask: Callable[[Platform], Awaitable[object]]
    share: float = 1.0


async def submit(on: Platform) -> None:
    """An evaluation."""
    spec = RunSpec(
        taskset=TASKSET, purpose=Purpose.EVAL, policy=PolicyChoice(model=on.a_model()), group_size=GROUP_SIZE
    )
    view = await on.submit(f"request-{next(on.counter)}", spec, _TRACE)
    on.open_runs.append(view.run.run_id)


def open_run(on: Platform) -> str:
    """One of those that were submitted."""
    return on.open_runs[next(on.counter) % len(on.open_runs)]


async def plan(on: Platform, run_id: str) -> None:
    """Its next groups."""
    await on.plan.transact(lambda unit: plan_more(unit, run_id, _RULES))


async def grade(on: Platform, run_id: str) -> None:
    """Facts about what is planned of a run, 32 of them."""

    def apply(unit: PlanUnit) -> None:
        planned = [row for row in unit.unsettled(run_id) if row.state is EpisodeState.PLANNED][:32]
        apply_facts(unit, [Graded(row.episode_id, run_id, 1.0, True, 2, 1, 1) for row in planned])

    await on.plan.transact(apply)


async def sweep_one(on: Platform, run_id: str) -> None:
    """As the planner does once a second for each run that is not over."""

    def read(unit: PlanUnit) -> bool:
        run = unit.run(run_id)
        return run is not None and bool(overdue_ids(unit, run))

    await on.plan.read(read)
    await on.plan.transact(lambda unit: sweep(unit, run_id, _RULES, none_queued_before=None))


async def to_play(on: Platform) -> None:
    """What a fleet asks when it opens an environment."""
    run_id = open_run(on)
    planned = await on.plan.read(lambda unit: unit.unsettled(run_id))
    if planned:
        await on.episodes.to_play(planned[0].episode_id)


async def finished_runs(on: Platform) -> None:
    """The oldest ones, as retention pages them."""
    now = utc_now()
    await on.plan.read(lambda unit: unit.old_runs.finished(now, None, 50))


async def pages(on: Platform, wanted: TrajectoryFilter, *, deep: bool = False) -> None:
    """A page of 100. deep: in the middle of all."""
    after = None
    if deep:
        middle = utc_now().timestamp() - 600 * on.size.runs / 2
        after = PageKey(int(middle * 1_000_000), "run-")
    assert len(await on.index.page(wanted, after, 101)) >= 100


async def export(on: Platform, wanted: TrajectoryFilter) -> None:
    """The newest thousand."""
    number = 0
    async for chunk in on.export(wanted):
        number += len(chunk.trajectories)
        if number >= _EXPORTED:
            return
    raise AssertionError(f"{number} trajectories were exported")


async def project(on: Platform) -> None:
    """Facts about 50 episodes, three each."""
    run_id = f"run-{on.rng.getrandbits(48):012x}"
    await on.index.project([fact for number in range(50) for fact in facts_about(on, run_id, number)])


def facts_about(on: Platform, run_id: str, number: int) -> tuple[EpisodeFact, ...]:
    """Requested, recorded, graded."""
    group_id = entities.group_id(run_id, number // GROUP_SIZE)
    identity = EpisodeIdentity(
        episode_id=entities.episode_id(group_id, number % GROUP_SIZE, 0), run_id=run_id, group_id=group_id,
        member=number % GROUP_SIZE, group_size=GROUP_SIZE, model=on.a_model(), purpose=Purpose.EVAL,
        split=Split.TRAIN, task_slug="task-000", task_digest=DIGEST, family="f",
    )  # fmt: skip
    at_us = int(utc_now().timestamp() * 1_000_000)
    body = BlobRef(objects.trajectory_body(run_id, identity.episode_id), DIGEST, 20_000)
    record = TrajectoryRecord(
        body, oldest_version=3, newest_version=4, stop_reason=1, num_turns=3, num_sampled_tokens=300,
        recorded_us=at_us,
    )  # fmt: skip
    grade = TrajectoryGrade(1.0, True, b"", at_us)
    return requested(identity, at_us), recorded(identity, record), graded(identity, record, grade)


async def watch(on: Platform) -> None:
    """What a watcher of one run asks when something else changed."""
    wanted = TrajectoryFilter(run_id=on.a_run())
    await on.index.changes(wanted, await on.index.position() - 1_000, 200)


async def gate(on: Platform) -> None:
    """What the gate asks of its own tables for one model, each time that it looks."""
    model = await on.models.model(on.a_model())
    checkpoint = await on.models.checkpoint(model.head_checkpoint_id)
    await on.gates.job(checkpoint.checkpoint_id)
    await on.models.last_head_move(model.model)
    for phase in (JobPhase.NEW, JobPhase.RUNNING, JobPhase.QUEUED):
        await on.gates.jobs(model.model, phase)
    await on.gates.evaluations(checkpoint.checkpoint_id, DIGEST, PROFILE)


async def get_model(on: Platform) -> None:
    """As samplers, trainers and supervisors do."""
    model = await on.models.model(on.a_model())
    await on.models.checkpoint(model.head_checkpoint_id)
    await on.models.version(model.model, 0)
    await on.models.unread_gate(model.model)


def some_runs(on: Platform) -> list[str]:
    """As a sweep of retention asks about at once."""
    return [run_name(on.rng.randrange(on.size.runs)) for _ in range(20)]


async def old_rows(on: Platform) -> None:
    """The oldest bodies."""
    before_us = int(utc_now().timestamp() * 1_000_000)
    await on.retention.old_rows(Removable.BODIES, before_us, (-1, ""), 100, settled_before_us=before_us)


_ANY: Final = TrajectoryFilter()
PLANNER: Final = (
    Question("planner: submit", submit),
    Question("planner: plan the next groups of a run", lambda on: plan(on, open_run(on))),
    Question("planner: sweep of a run", lambda on: sweep_one(on, open_run(on))),
    Question("planner: what a fleet asks to open an environment", to_play),
    Question("planner: runs that are not over", lambda on: on.plan.read(lambda unit: unit.active_runs())),
    Question("planner: 32 grades", lambda on: grade(on, open_run(on))),
    Question("planner: GetRun", lambda on: on.runs.get(on.a_run())),
    Question("planner: list of 50 runs", lambda on: on.runs.list(50, "", asked_for=True), 0.5),
    Question(
        "planner: list of 10 runs of a model", lambda on: on.runs.list(10, on.a_model(), asked_for=False)
    ),
    Question("planner: why", lambda on: on.explain(on.a_run())),
    Question("planner: results of a run", lambda on: on.runs.results(on.a_run()), 0.25),
    Question("planner: what retention may remove", finished_runs),
    Question("planner: references to 20 runs", lambda on: on.planner_references(some_runs(on), False)),
)


def an_episode(on: Platform) -> str:
    """Of a run that has many."""
    return entities.episode_id(entities.group_id(on.a_run(), 7), 1, 0)


STORE: Final = (
    Question("store: first page of list", lambda on: pages(on, _ANY)),
    Question("store: deep page of list", lambda on: pages(on, _ANY, deep=True)),
    Question("store: page of a run", lambda on: pages(on, TrajectoryFilter(run_id=on.a_run()))),
    Question("store: page of a model", lambda on: pages(on, TrajectoryFilter(model=on.a_model()))),
    Question(
        "store: deep page of successes", lambda on: pages(on, TrajectoryFilter(success=True), deep=True)
    ),
    Question("store: GetLedger of a run", lambda on: on.index.ledger(on.a_run(), 100)),
    Question("store: GetLedger of all", lambda on: on.index.ledger("", 0), 0.25),
    Question("store: one trajectory", lambda on: on.index.find_episode(an_episode(on))),
    Question("store: what a watcher of a run asks", watch, 0.5),
    Question("store: export of 1,000", partial(export, wanted=_ANY), 0.1),
    Question(
        "store: export of 1,000 of a model", lambda on: export(on, TrajectoryFilter(model=on.a_model())), 0.1
    ),
    Question("store: 150 facts about 50 episodes", project),
    Question("store: bodies to check", lambda on: on.index.unchecked(100)),
    Question("store: what retention may remove", old_rows),
)
REGISTRY: Final = (
    Question("registry: GetModel", get_model),
    Question("registry: what the gate asks of a model", gate),
    Question("registry: models with a gate under way", lambda on: on.gates.models_with_open_jobs()),
    Question("registry: list of a model's checkpoints", lambda on: on.models.checkpoints(on.a_model())),
    Question("registry: engines of a model", lambda on: on.leases.live(on.a_model(), 1, utc_now())),
    Question(
        "registry: references to 20 runs", lambda on: on.references.to_runs(dict.fromkeys(some_runs(on), ""))
    ),
)
STANDING: Final = (
    Question("planner: plan the next groups of a standing run", lambda on: plan(on, on.standing_run)),
    Question("planner: grades of a standing run", lambda on: grade(on, on.standing_run)),
    Question("planner: sweep of a standing run", lambda on: sweep_one(on, on.standing_run)),
    Question("planner: GetRun of a standing run", lambda on: on.runs.get(on.standing_run)),
    Question("planner: why of a standing run", lambda on: on.explain(on.standing_run)),
    Question("store: page of a standing run", lambda on: pages(on, TrajectoryFilter(run_id=on.standing_run))),
    Question("store: GetLedger of a standing run", lambda on: on.index.ledger(on.standing_run, 100)),
)
QUESTIONS: Final = (*PLANNER, *STORE, *REGISTRY, *STANDING)
