"""A registry whose heads are watched, and how its watch runs end."""

from dataclasses import replace

from tests.services.checkpoint_registry.conftest import RegistryHarness, judge
from tests.services.checkpoint_registry.planner_double import TASKS

from checkpoint_registry.domain.runs import EpisodeOutcome, RunOutcome
from checkpoint_registry.usecases.watch_turns import WatchPolicy

BATCH = 50


def watched(harness: RegistryHarness) -> RegistryHarness:
    """The same, whose heads are watched from now on."""
    harness.watch_policy = WatchPolicy()
    harness.restart()
    return harness


async def promoted(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.3)
    assert await harness.head() == 1


async def finish_watch(harness: RegistryHarness, won: int, lost: int, *, failed: int = 0) -> None:
    """The newest watch run ends: in so many pairs only head succeeded, in so many only its predecessor, which
    alone in `failed` of these was no failure; alike in the others."""
    harness.clock.forward(1)
    run_id, order = list(harness.planner.orders.items())[-1]
    assert order.draws == BATCH
    results = []
    for at in range(BATCH):
        head, before = (at < won, won <= at < won + lost) if at < won + lost else (True, True)
        kind = "timeout" if won <= at < won + failed else ""
        results += [
            played(order.version, 0, at, success=head, failure_kind=kind),
            played(order.against_version, 1, at, success=before),
        ]
    run = harness.planner.runs[run_id]
    harness.planner.runs[run_id] = replace(
        run, outcome=RunOutcome.COMPLETED, finished_at=harness.clock(), results=tuple(results)
    )
    assert await harness.watching.collect(run_id)
    await harness.drive()


def played(
    version: int, member: int, at: int, *, success: bool, failure_kind: str = "", graded: bool = True
) -> EpisodeOutcome:
    task = f"t{at % 40:02d}"
    group = f"run-watch-g{at:05d}"
    return EpisodeOutcome(task, TASKS[task], graded, success, version, version, member, group, failure_kind)
