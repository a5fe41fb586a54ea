"""What the planner says of runs, for services that may have missed the end of one. See README.md."""

from planned_runs.ends import LOOK_S, EndsSeenTwice
from planned_runs.planner import PlannedRuns

__all__ = ["LOOK_S", "EndsSeenTwice", "PlannedRuns"]
