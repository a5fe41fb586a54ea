"""How long an episode that was played waits for the grader, beyond its deadline."""

from datetime import UTC, datetime, timedelta

from scenario_runner.domain.peer_facts import GraderBacklog, GraderFact

DEADLINE = timedelta(seconds=60)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_a_grader_that_is_away_costs_nothing_however_long() -> None:
    found = GraderFact({"old": NOON - timedelta(days=1)}, is_away=True)
    assert GraderBacklog().waiting(found, (), DEADLINE, NOON) == {"old"}


def test_a_grader_that_came_back_has_ten_deadlines_for_its_backlog() -> None:
    backlog, recorded = GraderBacklog(), {"old": NOON - timedelta(days=1)}
    backlog.waiting(GraderFact(recorded, is_away=True), (), DEADLINE, NOON)
    for seconds, waits in ((0, {"old"}), (599, {"old"}), (600, set())):
        now = NOON + timedelta(seconds=seconds)
        assert backlog.waiting(GraderFact(recorded), (), DEADLINE, now) == waits


def test_what_a_busy_grader_never_got_times_out_and_what_is_new_waits() -> None:
    """Its queue is never empty, so that alone says nothing about one episode."""
    backlog = GraderBacklog()
    assert backlog.waiting(GraderFact({}), (), DEADLINE, NOON) == set()
    later = NOON + timedelta(hours=1)
    recorded = {"lost": NOON, "new": later - timedelta(seconds=599)}
    assert backlog.waiting(GraderFact(recorded), (), DEADLINE, later) == {"new"}
    away = GraderFact(recorded, is_away=True)
    assert backlog.waiting(away, (), DEADLINE, later) == {"lost", "new"}


def test_questions_without_an_answer_keep_what_is_overdue_for_ten_deadlines_in_a_row() -> None:
    backlog, overdue = GraderBacklog(), ("a", "b")
    for seconds in range(0, 601, 5):
        assert backlog.waiting(None, overdue, DEADLINE, NOON + timedelta(seconds=seconds)) == {"a", "b"}
    assert backlog.waiting(None, overdue, DEADLINE, NOON + timedelta(seconds=605)) == set()


def test_a_question_of_an_hour_ago_that_had_no_answer_is_not_counted_with_the_next_one() -> None:
    backlog, later = GraderBacklog(), NOON + timedelta(hours=1)
    backlog.waiting(None, ("a",), DEADLINE, NOON)
    assert backlog.waiting(None, ("b", "c"), DEADLINE, later) == {"b", "c"}
    assert backlog.waiting(None, ("b", "c"), DEADLINE, later + timedelta(seconds=1)) == {"b", "c"}
