"""Removal of old runs from the plan: what stays, what is refused, kills, replicas, late facts."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, graded, settled, train_spec

from retention import Reference, SweepOrder, SweepReport
from scenario_runner.adapters.sql_retention import OldRuns
from scenario_runner.adapters.tables import EPISODE, GROUP, RUN_COUNT, SOURCE_GROUP
from scenario_runner.domain.facts import Fact, Failed
from scenario_runner.domain.runs import Refused, RunState
from scenario_runner.settings import ScenarioRunnerSettings
from scenario_runner.usecases.ending import end_run
from scenario_runner.usecases.retaining import RemoveRuns
from scenario_runner.usecases.submitting import Runs
from service_kit.errors import InvalidRequest
from service_kit.settings import SettingsError, load_settings
from upcycle.errors import Unavailable

MONTH = timedelta(days=30)


@dataclass
class RegistryDouble:
    """Needs what a test sets, or cannot be asked."""

    needed: list[Reference] = field(default_factory=list)
    away: str = ""

    async def to_runs(self, run_ids: Mapping[str, str], *, release: bool) -> Sequence[Reference]:
        if self.away:
            raise Unavailable(self.away)
        return [one for one in self.needed if one.run_id in run_ids]


def removing(sources: SourcesHarness, registry: RegistryDouble | None = None, batch: int = 50) -> RemoveRuns:
    planner = sources.planner
    references = registry or RegistryDouble()
    return RemoveRuns(planner.plan, references, MONTH, now=lambda: planner.now, batch=batch)


async def later(sources: SourcesHarness, *, apply: bool = True, **more: object) -> SweepReport:
    """A month after everything."""
    sources.planner.now += MONTH + timedelta(days=1)
    return await removing(sources, **more)(SweepOrder(apply))  # type: ignore[arg-type]


async def num_rows(sources: SourcesHarness) -> list[int]:
    """Groups, episodes, groups of evaluations that runs looked at, and numbers of them by state."""
    tables = (GROUP, EPISODE, SOURCE_GROUP, RUN_COUNT)
    counts = [sa.select(sa.func.count()).select_from(table) for table in tables]
    return await sources.database.run(lambda sql: [sql.execute(one).scalar_one() for one in counts])


@pytest.mark.parametrize("days", ["-1", "0", "nan", "a month"])
def test_an_age_that_is_none_is_refused_by_name(days: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCENARIO_RUNNER_RETENTION_RUNS_DAYS", days)
    with pytest.raises(SettingsError, match="SCENARIO_RUNNER_RETENTION_RUNS_DAYS"):
        load_settings(ScenarioRunnerSettings, program="scenario_runner")


async def test_totals_stay_and_results_are_refused_by_name(sources: SourcesHarness) -> None:
    await sources.register()
    old = await sources.evaluation()
    before = await sources.view(old)
    assert (before.counts.requested, before.counts.settled) == (12, 12)
    dry = await later(sources, apply=False)
    assert (dry.number, dry.policy, dry.oldest) == (1, "older than 30 days", before.run.finished_at)
    assert await num_rows(sources) == [6, 12, 0, 4]
    assert (await removing(sources)(SweepOrder(apply=True))).number == 1
    assert await num_rows(sources) == [0, 0, 0, 0]
    after = await sources.view(old)
    assert after.counts == before.counts
    assert (after.run.num_graded, after.run.reward_sum) == (before.run.num_graded, before.run.reward_sum)
    assert after.run.removed_at == sources.planner.now
    runs = Runs(sources.planner.plan, wake=lambda: None)
    with pytest.raises(
        Refused, match=f"the results of {old} were removed by retention .* older than 30 days"
    ):
        await runs.results(old)
    with pytest.raises(Refused, match="was released to retention"):
        await sources.submit(train_spec(old))


async def test_open_young_and_needed_runs_stay(sources: SourcesHarness) -> None:
    await sources.register()
    evidence, young = await sources.evaluation(), await sources.submit(eval_spec())
    registry = RegistryDouble([Reference(evidence, "evidence of a gate")])
    report = await later(sources, registry=registry)
    assert (report.number, report.kept) == (0, {"evidence of a gate": 1})
    assert (await sources.run(young)).state is RunState.RUNNING
    registry.away = "checkpoint_registry does not answer"
    for apply in (False, True):
        with pytest.raises(Unavailable, match=registry.away):
            await later(sources, apply=apply, registry=registry)
    assert (await sources.view(evidence)).counts.requested == 12


async def test_an_evaluation_stays_as_long_as_the_run_that_drew_from_it(sources: SourcesHarness) -> None:
    """So a group that trained once is never taken for one that did not."""
    await sources.register()
    drawn = await sources.evaluation()
    training = await sources.submit(train_spec(drawn, sampling=False))
    await sources.plan(training)
    offers = await sources.offers(training)
    await sources.planner.apply(
        *(settled(training, one.group_id, "trained", source=drawn) for one in offers[:1]),
        *(settled(training, one.group_id, "released", "zero_spread", source=drawn) for one in offers[1:]),
    )
    sources.planner.now += MONTH + timedelta(days=1)
    assert (await removing(sources)(SweepOrder(apply=True))).kept == {"a run that drew from it is there": 1}
    await sources.change(training, lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled"))
    await sources.planner.apply(*[one for one in await sources.settled_by_planner() if one is not None])
    await sources.sweep(training)
    assert (await sources.run(training)).state is RunState.CANCELLED
    before = await sources.view(training)
    assert sum(report.trained for report in before.sources) == 1
    assert (await later(sources)).number == 1, "the training run"
    assert (await sources.view(training)).sources == before.sources
    assert (await num_rows(sources))[2] == 6, "which of its groups trained is still known"
    assert (await later(sources)).number == 1, "the evaluation"
    assert (await sources.view(training)).sources == before.sources
    assert await num_rows(sources) == [0, 0, 0, 0]


async def test_late_facts_about_a_removed_run_change_nothing(sources: SourcesHarness) -> None:
    await sources.register()
    old = await sources.evaluation()
    await later(sources)
    before = await sources.view(old)
    group = f"{old}-g00000"
    facts: list[Fact] = [
        graded(old, f"{group}-e000-a0"),
        Failed(f"{group}-e001-a0", old, "timeout", ""),
        settled(old, group, source=""),
    ]
    await sources.planner.apply(*facts, *facts)
    assert await sources.view(old) == before
    assert await num_rows(sources) == [0, 0, 0, 0]


async def test_a_kill_after_any_transaction_is_ended_by_the_next_sweep(
    sources: SourcesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sources.register()
    old = [await sources.evaluation() for _ in range(2)]
    before = [(await sources.view(run_id)).counts for run_id in old]
    monkeypatch.setattr("scenario_runner.adapters.sql_retention._GROUPS_AT_ONCE", 4)
    sources.planner.now += MONTH + timedelta(days=1)
    transact, killed = sources.planner.plan.transact, 0
    for moment in range(1, 50):
        left = [moment]

        async def until_killed(work: object, *, left: list[int] = left, **turn: object) -> object:
            result: object = await transact(work, **turn)  # type: ignore[arg-type]
            left[0] -= 1
            if left[0] == 0:
                raise SystemExit
            return result

        with monkeypatch.context() as patched:
            patched.setattr(sources.planner.plan, "transact", until_killed)
            try:
                await removing(sources, batch=1)(SweepOrder(apply=True))
            except SystemExit:
                killed += 1
        assert [(await sources.view(run_id)).counts for run_id in old] == before
    assert killed >= 4
    while (await removing(sources, batch=1)(SweepOrder(apply=True))).number:
        pass
    assert await num_rows(sources) == [0, 0, 0, 0]
    assert [(await sources.view(run_id)).counts for run_id in old] == before


async def test_two_planners_at_once_remove_each_run_once(sources: SourcesHarness) -> None:
    await sources.register()
    old = [await sources.evaluation() for _ in range(4)]
    before = [(await sources.view(run_id)).counts for run_id in old]
    sources.planner.now += MONTH + timedelta(days=1)
    reports = await asyncio.gather(*(removing(sources)(SweepOrder(apply=True)) for _ in range(2)))
    assert sum(report.number for report in reports) == 4
    assert await num_rows(sources) == [0, 0, 0, 0]
    assert [(await sources.view(run_id)).counts for run_id in old] == before


async def test_batches_go_on_where_the_last_one_ended(sources: SourcesHarness) -> None:
    await sources.register()
    old = [await sources.evaluation() for _ in range(3)]
    registry = RegistryDouble([Reference(old[0], "evidence of a gate")])
    sources.planner.now += MONTH + timedelta(days=1)
    sweep, after, numbers = removing(sources, registry, batch=1), "", []
    for _ in range(4):
        report = await sweep(SweepOrder(True, None, after))
        numbers.append(report.number)
        after = report.next
    assert numbers == [0, 1, 1, 0]
    for hostile in ("x", "[]", '["x", "y"]', "[1, 2]", "[" * 9999, '["0001-01-01T00:00:00+23:59", "x"]'):
        with pytest.raises(InvalidRequest, match=r"after .* is not one of ours"):
            await sweep(SweepOrder(after=hostile))


async def test_rows_of_a_marked_run_are_never_counted(sources: SourcesHarness) -> None:
    """Between the mark and the last deletion."""
    await sources.register()
    old = await sources.evaluation()
    before = await sources.view(old)
    sources.planner.now += MONTH + timedelta(days=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OldRuns, "empty_some", lambda _: False)
        await removing(sources)(SweepOrder(apply=True))
    assert await num_rows(sources) == [6, 12, 0, 4]
    assert (await sources.view(old)).counts == before.counts
