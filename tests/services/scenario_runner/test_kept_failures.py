"""What a lease keeps of a grade that failed."""

import asyncio
from datetime import UTC, datetime

from scenario_runner.domain.environments import EpisodeToPlay, Grade, PythonEnvironment
from scenario_runner.usecases.lease import Lease

STARTED = datetime(2026, 1, 1, tzinfo=UTC)
EPISODE = EpisodeToPlay("e", PythonEnvironment("env", "env.py"), "ask", "{}", STARTED)


async def test_errors_that_stand_behind_each_other_in_a_circle_are_kept_at_once() -> None:
    first, second = ValueError("a verdict that is none"), TimeoutError("a judge that is away")
    first.__cause__, second.__cause__ = second, first

    async def grade() -> Grade:
        held = bytearray(1 << 20)
        assert held
        raise first

    grading = asyncio.ensure_future(grade())
    await asyncio.wait([grading])
    lease = Lease("l", EPISODE, None, STARTED)
    lease.keep_result(grading)
    assert lease.grading is not None
    assert lease.grading.exception() is first
    innermost = first.__traceback__
    assert innermost is not None
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    assert "held" not in innermost.tb_frame.f_locals
