"""Two evaluations and two training runs in any order of events.

Each group is with at most one run at a time and trains at most once, and the evaluations measure what they
would have measured without it.
"""

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.scenario_runner.planning import RULES, PlannerHarness, open_database
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, settled, train_spec

from scenario_runner.domain import plan as decisions
from scenario_runner.domain.facts import Advanced, GroupSettled, Stopping
from scenario_runner.domain.runs import FINAL_RUN_STATES, EpisodeRow, RunState
from scenario_runner.usecases.ending import end_run, stop_early
from scenario_runner.usecases.planning import pause, resume

MOVES = (
    *("play", "play", "play", "plan", "plan", "answer", "answer", "again", "step", "own"),
    *("sweep", "tick", "pause", "resume", "stop", "cancel", "deliver", "submit"),
)


class Order:
    """The runs, the stream's memory of answers, and the moves that may come in any order."""

    def __init__(self, sources: SourcesHarness) -> None:
        self.sources = sources
        self.evaluations: list[str] = []
        self.trainings: list[str] = []
        self.measured: dict[str, EpisodeRow] = {}
        self.answers: dict[tuple[str, str], GroupSettled] = {}
        """By run and group: as in the stream, the first answer is the only one."""

    @property
    def run_id(self) -> str:
        return self.trainings[-1]

    async def begin(self) -> None:
        self.evaluations = [await self.sources.evaluation()]
        self.trainings = [await self.sources.submit(train_spec(self.evaluations[0], steps=4))]
        self.evaluations.append(await self.sources.submit(eval_spec(online=True)))

    async def move(self, name: str, pick: int) -> None:
        await getattr(self, f"do_{name}")(pick)

    async def do_play(self, pick: int) -> None:
        await self.sources.play(self.evaluations[-1], num_groups=1 + pick % 2)

    async def do_plan(self, _: int) -> None:
        await self.sources.plan(self.run_id)

    async def do_answer(self, pick: int) -> None:
        """The trainer answers an offer that it has read, whatever became of the run since."""
        offers = [one for run_id in self.trainings for one in await self.sources.offers(run_id)]
        if not offers:
            return
        one = offers[pick % len(offers)]
        outcome = ("trained", "released")[pick // 7 % 2]
        if self.is_over(await self.sources.run(one.run_id)):
            outcome = "released"  # a session that is over takes no gradient
        answer = settled(one.run_id, one.group_id, outcome, "zero_spread", source=one.source_run_id)
        first = self.answers.setdefault((one.run_id, one.group_id), answer)
        await self.sources.planner.apply(first)

    @staticmethod
    def is_over(run: object) -> bool:
        return getattr(run, "state", None) in FINAL_RUN_STATES

    async def do_again(self, pick: int) -> None:
        """Facts are delivered again."""
        answers = list(self.answers.values())
        if answers:
            await self.sources.planner.apply(answers[pick % len(answers)], answers[pick // 3 % len(answers)])

    async def do_step(self, pick: int) -> None:
        await self.sources.planner.apply(Advanced(self.run_id, pick % 4, 4 + pick % 3))

    async def do_own(self, pick: int) -> None:
        """The trainer settles a group of the run itself."""
        rows = await self.sources.planner.do(lambda unit: unit.unsettled(self.run_id))
        if rows:
            group = rows[pick % len(rows)].group_id
            await self.sources.planner.apply(settled(self.run_id, group, "excluded", "stale", source=""))

    async def do_sweep(self, _: int) -> None:
        for run_id in (*self.evaluations, *self.trainings):
            await self.sources.sweep(run_id)

    async def do_tick(self, pick: int) -> None:
        self.sources.planner.now += timedelta(seconds=pick % 30)

    async def do_pause(self, _: int) -> None:
        await self.sources.change(self.run_id, pause)

    async def do_resume(self, _: int) -> None:
        await self.sources.change(self.run_id, resume)

    async def do_stop(self, _: int) -> None:
        await self.sources.change(self.run_id, lambda unit, run: stop_early(unit, run, "enough"))

    async def do_cancel(self, _: int) -> None:
        await self.sources.change(
            self.run_id, lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled")
        )

    async def do_deliver(self, _: int) -> None:
        """What the planner said comes back through the stream."""
        for run_id in self.trainings:
            said = await self.sources.outbox(f"run.stopping/{run_id}%", "event_id")
            for event_id in said:
                await self.sources.planner.apply(Stopping(run_id, event_id.endswith("/final")))
        for fact in await self.sources.settled_by_planner():
            if isinstance(fact, GroupSettled):
                first = self.answers.setdefault((fact.run_id, fact.group_id), fact)
                await self.sources.planner.apply(first)

    async def do_submit(self, _: int) -> None:
        """A later run draws what the first one left, if anything."""
        if len(self.trainings) == 1 and self.is_over(await self.sources.run(self.run_id)):
            self.trainings.append(await self.sources.submit(train_spec(steps=4)))
            self.evaluations.append(await self.sources.submit(eval_spec(online=True)))

    async def check(self) -> None:
        rows = await self.sources.database.run(
            lambda sql: sql.execute(
                sa.text("SELECT group_id, run_id, source_run_id, state FROM source_group")
            ).all()
        )
        taken = Counter(row.group_id for row in rows if row.state in ("offered", "trained"))
        assert all(count == 1 for count in taken.values())
        trained = {
            (run_id, group) for (run_id, group), one in self.answers.items() if one.outcome == "trained"
        }
        assert trained <= {(row.run_id, row.group_id) for row in rows if row.state == "trained"}
        assert max(Counter(group for _, group in trained).values(), default=0) <= 1
        for run_id in self.trainings:
            view = await self.sources.view(run_id)
            offered = sum(report.offered for report in view.sources)
            assert view.counts.groups_open + offered <= decisions.open_group_limit(view.run, 1) == 4
            if view.run.state in FINAL_RUN_STATES:
                assert (offered, view.counts.in_flight) == (0, 0)
        for run_id in self.evaluations:
            await self.check_measured(run_id)

    async def check_measured(self, run_id: str) -> None:
        """What an evaluation has measured once never changes."""
        rows = {row.episode_id: row for row in await self.sources.episodes(run_id)}
        ended = {key: row for key, row in rows.items() if not row.is_unsettled}
        known = {key: row for key, row in self.measured.items() if row.run_id == run_id}
        assert {key: rows[key] for key in known} == known
        self.measured |= ended
        run = await self.sources.run(run_id)
        assert (run.num_graded, run.num_successes) == (len(ended), len(ended) // 2)

    async def come_to_an_end(self) -> None:
        await self.do_resume(0)
        await self.do_stop(0)
        for _ in range(6):
            for move in ("deliver", "sweep", "deliver"):
                await self.move(move, 0)
            self.sources.planner.now += timedelta(seconds=601)  # longer than every grace period
        assert self.is_over(await self.sources.run(self.run_id))
        await self.check()


MANY_MOVES = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 10_000)), max_size=40)


@pytest.mark.timeout(300)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=MANY_MOVES)
def test_a_group_trains_once_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]
) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("plan"), moves))


@pytest.mark.study
@pytest.mark.timeout(900)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=MANY_MOVES)
def test_a_group_trains_once_in_a_hundred_orders(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]
) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("plan"), moves))


async def _play(folder: Path, moves: list[tuple[str, int]]) -> None:
    planner = PlannerHarness(await open_database(f"sqlite:///{folder / 'plan.sqlite'}"))
    try:
        sources = SourcesHarness(planner)
        await sources.register()
        order = Order(sources)
        await order.begin()
        assert RULES.groups_per_transaction < decisions.open_group_limit(await sources.run(order.run_id), 1)
        for name, pick in moves:
            await order.move(name, pick)
            await order.check()
        await order.come_to_an_end()
    finally:
        await planner.database.stop()
