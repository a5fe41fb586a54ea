"""A run that takes recorded sessions as they are graded: which it takes when, and how it ends."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.services.scenario_runner.source_runs import SourcesHarness, train_spec
from tests.services.scenario_runner.test_session_groups import RUN, session

from episodes import Split
from scenario_runner.domain.explain_supply import supply as explained
from scenario_runner.domain.facts import Advanced, GroupSettled
from scenario_runner.domain.recorded_sessions import GradedSession
from scenario_runner.domain.run_facts import PlanWaits, RunFacts
from scenario_runner.domain.runs import RunState
from scenario_runner.usecases.arriving_sessions import TakeSessions
from scenario_runner.usecases.supply import supply_of
from scenario_runner.usecases.views import find_run
from upcycle.session_query import SessionQuery

IDLE_S = 600
GATHER = timedelta(seconds=60)


async def submitted(sources: SourcesHarness, *, steps: int = 100, **training: Any) -> str:
    """A run whose groups are of two, and a step one of them."""
    spec = train_spec(sessions="group=nightly", prompts=1, steps=steps, sampling=False)
    assert spec.training is not None
    made = replace(spec.training, **training)
    return await sources.submit(replace(spec, training=made, sessions_idle_s=IDLE_S))


async def arrive(sources: SourcesHarness, *sessions: GradedSession, after_s: float = 1.0) -> None:
    """So many seconds pass, sessions get their rewards, the planner looks for them and plans."""
    sources.planner.now += timedelta(seconds=after_s)
    sources.sessions.found += [replace(one, graded_at=sources.planner.now) for one in sessions]
    await look(sources)


async def look(sources: SourcesHarness) -> None:
    await TakeSessions(sources.planner.plan, sources.sessions, gather=GATHER, wake=lambda: None)()


async def offered(sources: SourcesHarness, run_id: str) -> list[list[str]]:
    """The sessions of each group that the trainer was offered."""
    await sources.plan(run_id)
    offers = await sources.offers(run_id)
    return [[one.episode_id.removeprefix("session-") for one in offer.members] for offer in offers]


async def trained(sources: SourcesHarness, run_id: str, number: int) -> None:
    """The trainer makes a step of the newest offer."""
    offer = (await sources.offers(run_id))[number - 1]
    members = tuple(one.episode_id for one in offer.members)
    settled = GroupSettled(offer.group_id, run_id, "trained", "", number, members, RUN)
    await sources.planner.apply(settled, Advanced(run_id, number, 4 + number, episode_ids=members))
    gone = set(members)  # the store has them as trained, and the query asks for graded ones
    sources.sessions.found = [one for one in sources.sessions.found if one.episode_id not in gone]


async def test_a_run_begins_without_a_session_and_takes_groups_as_they_are_graded(
    sources: SourcesHarness,
) -> None:
    run_id = await submitted(sources)
    assert await offered(sources, run_id) == []
    assert (await sources.run(run_id)).state is RunState.RUNNING
    await arrive(sources, session("a", 0.0))
    assert await offered(sources, run_id) == [], "others of its group may come"
    await arrive(sources, session("b", 1.0))
    assert await offered(sources, run_id) == [["a", "b"]]
    (offer,) = await sources.offers(run_id)
    assert not offer.before_start, "its versions are those of the run"
    await trained(sources, run_id, 1)
    await arrive(sources, session("c", 0.0), session("d", 1.0))
    assert await offered(sources, run_id) == [["a", "b"], ["c", "d"]]
    await trained(sources, run_id, 2)
    report = await sources.report(run_id, RUN)
    assert (report.groups, report.trained, report.left_out) == (2, 2, {})


async def test_a_group_waits_a_minute_for_others_and_is_then_taken_as_it_is(sources: SourcesHarness) -> None:
    run_id = await submitted(sources)
    await arrive(sources, session("a", 0.0), session("b", 0.0, group="other", prompt="e"))
    await arrive(sources, session("u", split=Split.UNASSIGNED))
    assert (await sources.report(run_id, RUN)).left_out == {"unassigned": 1}, "no other one changes that"
    await arrive(sources, after_s=GATHER.total_seconds())
    assert await offered(sources, run_id) == []
    assert (await sources.report(run_id, RUN)).left_out == {"unassigned": 1, "group_of_one": 2}
    await arrive(sources, session("c", 1.0), after_s=GATHER.total_seconds())
    await arrive(sources, session("d", 0.0))
    assert await offered(sources, run_id) == [["c", "d"]], "what was left out is not looked at again"


async def test_a_session_without_a_group_is_taken_at_once_with_a_batch_baseline(
    sources: SourcesHarness,
) -> None:
    run_id = await submitted(sources, single_sessions="batch", prompts_per_step=2)
    await arrive(sources, session("a", 1.0, group=""))
    await arrive(sources, session("b", 1.0, group="g"))
    assert await offered(sources, run_id) == [["a"]], "whether it teaches anything is known of a whole step"
    held_out = session("x", 1.0, group="", prompt="h", split=Split.HELD_OUT)
    await arrive(sources, held_out, after_s=GATHER.total_seconds())
    assert await offered(sources, run_id) == [["a"], ["b"]]
    assert (await sources.report(run_id, RUN)).single == 2, "of those that may train"


async def test_a_session_is_taken_once_also_by_a_planner_that_starts_again(sources: SourcesHarness) -> None:
    run_id = await submitted(sources)
    await arrive(sources, session("a", 0.0), session("b", 1.0))
    await look(sources)
    await look(sources)
    assert await offered(sources, run_id) == [["a", "b"]]
    assert (await sources.report(run_id, RUN)).groups == 1


async def test_looks_ask_for_what_came_since_the_newest_group(sources: SourcesHarness) -> None:
    await submitted(sources)
    await look(sources)
    assert sources.sessions.asked[-1] == ("m", SessionQuery(group="nightly"))
    await arrive(sources, session("a", 0.0), session("b", 1.0))
    graded_at = sources.planner.now
    await look(sources)
    _, query = sources.sessions.asked[-1]
    assert query == SessionQuery(group="nightly", since=graded_at - GATHER - timedelta(minutes=10))


async def test_a_run_ends_when_no_session_came_for_long_enough(sources: SourcesHarness) -> None:
    run_id = await submitted(sources)
    await arrive(sources, session("a", 0.0), session("b", 1.0), after_s=IDLE_S - 1)
    await offered(sources, run_id)
    await trained(sources, run_id, 1)
    await arrive(sources, session("u", split=Split.UNASSIGNED), after_s=IDLE_S - 1)
    assert await offered(sources, run_id) == [["a", "b"]]
    assert (await sources.run(run_id)).ending is None
    await arrive(sources, after_s=1)
    await sources.plan(run_id)
    run = await sources.run(run_id)
    assert run.ending is RunState.COMPLETED, "one that cannot train does not count"
    assert run.failure == "no graded session that can train came for 600 s (sessions_idle_s)"


async def test_a_run_without_a_step_fails_at_its_deadline_also_without_a_limit_of_steps(
    sources: SourcesHarness,
) -> None:
    run_id = await submitted(sources, steps=0)
    await arrive(sources, session("a", 1.0), session("b", 1.0), after_s=IDLE_S + 1)
    await sources.plan(run_id)
    run = await sources.run(run_id)
    assert run.state is RunState.FAILED
    assert "no step was made: no graded session that can train came for 600 s" in run.failure
    assert "left out: 1 zero_spread" in run.failure


async def test_a_paused_run_takes_sessions_and_waits_anew_when_it_is_resumed(sources: SourcesHarness) -> None:
    run_id = await submitted(sources)
    await sources.change(
        run_id, lambda unit, run: unit.update_run(replace(run, state=RunState.PAUSED, failure="why"))
    )
    await arrive(sources, session("a", 0.0), session("b", 1.0), after_s=IDLE_S * 2)
    assert await offered(sources, run_id) == []
    assert (await sources.report(run_id, RUN)).waiting == 1


async def test_why_names_the_query_and_when_the_run_ends(sources: SourcesHarness) -> None:
    run_id = await submitted(sources)
    sources.planner.now += timedelta(seconds=100)
    view = await sources.view(run_id)
    known = await sources.planner.do(lambda unit: supply_of(unit, find_run(unit, run_id)))
    unknown: dict[str, Any] = dict.fromkeys(
        ("engines", "sampler", "grader", "planner", "ledger", "session"), None
    )
    nothing = PlanWaits()
    facts = RunFacts(
        view, nothing, fleet_alive=0, fleet_capacity=0, outbox_waiting=0, supply=known, **unknown
    )
    (reason,) = explained(facts)
    assert (reason.owner, reason.what) == (
        "you",
        "waiting for graded sessions (group=nightly); without one that can train the run ends in 500 s: a "
        "step takes 1 group, the trainer has 0, and the run plans none itself",
    )
