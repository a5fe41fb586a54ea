"""Grades and failures say how long engines and the environment were used until then."""

from datetime import UTC, datetime, timedelta

from reward_grader.domain import Grade
from reward_grader.wire import graded_to_wire, usage_until
from upcycle.api.common.v1.common_pb2 import Usage
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded

RECORDED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_environment_is_held_until_the_grade_or_the_failure() -> None:
    recorded = TrajectoryRecorded(usage=Usage(engine_s=2.5, environment_s=10.0))
    recorded.recorded_at.FromDatetime(RECORDED_AT)
    later = RECORDED_AT + timedelta(seconds=4)
    held = Usage(engine_s=2.5, environment_s=14.0)
    assert graded_to_wire(recorded, Grade(1.0, True), later).usage == held
    assert usage_until(recorded, later) == held


def test_a_grader_whose_clock_is_behind_takes_no_seconds_away() -> None:
    recorded = TrajectoryRecorded(usage=Usage(engine_s=2.5, environment_s=10.0))
    recorded.recorded_at.FromDatetime(RECORDED_AT)
    earlier = RECORDED_AT - timedelta(seconds=4)
    assert graded_to_wire(recorded, Grade(1.0, True), earlier).usage.environment_s == 10.0
