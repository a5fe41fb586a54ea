"""Metrics of the planner and the fleet."""

from prometheus_client import Counter, Gauge, Histogram

_FAST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

ENVIRONMENTS_ALIVE = Gauge(
    "upcycle_environments_alive", "Environment processes that run or are being started."
)
ENVIRONMENTS_STARTED = Counter("upcycle_environments_started", "Environments opened.")
LEASES_LAPSED = Counter(
    "upcycle_leases_lapsed", "Environments that ended because their lease ended before a Close."
)
CALL_S = Histogram(
    "upcycle_environment_call_seconds",
    "EnvironmentService calls, failed ones included.",
    ["call"],
    buckets=_FAST_S,
)
GROUPS_PLANNED = Counter("upcycle_groups_planned", "Groups planned.", ["purpose"])
GROUPS_OFFERED = Counter(
    "upcycle_source_groups_looked_at",
    "Groups of evaluations that were offered to training runs, or left out.",
)
NEW_TASKS = Counter(
    "upcycle_new_tasks",
    "Orders to generators of environments, by their end: playing, duplicate, held_out, filtered, failed.",
    ["state"],
)
ANNOUNCED_AGAIN = Counter(
    "upcycle_groups_announced_again", "Groups and offers that a trainer should have had and did not have."
)
PLAN_S = Histogram("upcycle_plan_seconds", "Planner transactions.", ["kind"], buckets=_FAST_S)
EPISODES_IN_FLIGHT = Gauge("upcycle_episodes_in_flight", "Planned or graded, not settled.", ["run_id"])
