"""Seeds of episodes through the real planner: of what is played, not of the model that plays it."""

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa
from google.protobuf import json_format
from tests.services.scenario_runner.planning import PlannerHarness, eval_spec, train_spec

from scenario_runner.domain import plan as decisions
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.run_config import RunSpec, Sampling


async def requests(planner: PlannerHarness, run_id: str) -> list[EpisodeRequested]:
    """The facts of a run's episodes, in the order in which they were planned."""
    query = sa.text(
        "SELECT payload FROM outbox WHERE event_id LIKE :ids AND event_id NOT LIKE :commands ORDER BY id"
    )
    wanted = {"ids": f"episode.requested/{run_id}-%", "commands": "episode.requested/%/%"}
    rows = await planner.database.run(lambda sql: list(sql.execute(query, wanted).scalars()))
    return [json_format.Parse(row, EpisodeRequested()) for row in rows]


async def seeds(planner: PlannerHarness, run_id: str) -> Mapping[tuple[str, int, int], list[int]]:
    """By task, member and attempt: a run that comes back to a task has several."""
    found: dict[tuple[str, int, int], list[int]] = {}
    for request in await requests(planner, run_id):
        key = (request.episode.task_slug, request.episode.member, request.attempt)
        found.setdefault(key, []).append(request.sampling.seed)
    return found


async def submit_beside(planner: PlannerHarness, run_id: str, spec: RunSpec) -> None:
    """Another run on the taskset of the first, planned to its end."""
    first = await planner.run()
    other = replace(first, run_id=run_id, request_id=run_id, spec=spec, next_position=0)

    def add(unit: object) -> None:
        unit.add_run(other)  # type: ignore[attr-defined]

    await planner.do(add)
    planner.run_id = run_id
    await planner.plan_all()


def seeded(spec: RunSpec, seed: int) -> RunSpec:
    return replace(spec, sampling=Sampling(seed=seed))


async def test_two_evaluations_with_one_base_seed_sample_every_attempt_alike(planner: PlannerHarness) -> None:
    await planner.begin(seeded(eval_spec(), 5), num_tasks=3)
    await submit_beside(planner, "run-000000000002", seeded(eval_spec(), 5))
    first = await seeds(planner, "run-000000000001")
    assert len(first) == 6
    assert len({one for (one,) in first.values()}) == 6
    assert await seeds(planner, "run-000000000002") == first


async def test_another_base_seed_samples_something_else(planner: PlannerHarness) -> None:
    await planner.begin(seeded(eval_spec(), 5), num_tasks=3)
    await submit_beside(planner, "run-000000000002", seeded(eval_spec(), 6))
    first = await seeds(planner, "run-000000000001")
    second = await seeds(planner, "run-000000000002")
    assert first.keys() == second.keys()
    assert not {one for (one,) in first.values()} & {one for (one,) in second.values()}


async def test_a_replay_of_an_attempt_has_a_seed_of_its_own(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(), num_tasks=1)
    await planner.apply(planner.failed(planner.members(0)[1]))
    found = await seeds(planner, planner.run_id)
    assert sorted(found) == [("t0", 0, 0), ("t0", 1, 0), ("t0", 1, 1)]
    assert len({one for (one,) in found.values()}) == 3


async def test_each_epoch_of_a_training_run_samples_a_task_anew(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=2)  # 4 groups may be open: two epochs
    found = await seeds(planner, planner.run_id)
    assert [len(visits) for visits in found.values()] == [2, 2, 2, 2]
    assert len({seed for visits in found.values() for seed in visits}) == 8


async def test_a_seed_fits_the_wire_and_is_another_for_every_attempt() -> None:
    made = {decisions.episode_seed(1, "t", 0, attempt, 0) for attempt in range(100)}
    assert len(made) == 100
    assert all(0 <= seed < 2**63 for seed in made)
    assert decisions.episode_seed(1, "t", 0, 1, 0) != decisions.episode_seed(1, "t", 0, 0, 1)
