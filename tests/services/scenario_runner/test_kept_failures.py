"""What a lease keeps of a grade that failed."""

import asyncio
from datetime import UTC, datetime

from scenario_runner.domain.environments import EpisodeToPlay, PythonEnvironment
from scenario_runner.usecases.lease import Lease

STARTED = datetime(2026, 1, 1, tzinfo=UTC)
EPISODE = EpisodeToPlay("e", PythonEnvironment("env", "env.py"), "ask", "{}", STARTED)
    "e", PythonEnvironment("env", "env.py"), "ask", "{}", datetime(2026, 1, 1, tzinfo=UTC)
)


async def test_errors_that_stand_behind_each_other_in_a_circle_are_kept_at_once() -> None:
    first, second = ValueError("a verdict that is none"), TimeoutError("a judge that is away")
    first.__cause__, second.__cause__ = second, first

    async def grade() -> None:
        held = bytearray(1 << 20)
        assert held
        raise first

    grading = asyncio.ensure_future(grade())
    await asyncio.wait([grading])
    lease = Lease("l", EPISODE, None, STARTED)
    lease.keep_result(grading)  # type: ignore[arg-type]  # it only fails
    assert lease.grading is not None
    assert lease.grading.exception() is first
    assert first.__traceback__ is not None
    frames = first.__traceback__
    while frames.tb_next is not None:
        frames = frames.tb_next
    assert "held" not in frames.tb_frame.f_locals
