"""Environments on disk for the SDK's tests."""

from pathlib import Path

import pytest

INCIDENT = '''
import asyncio
from upcycle import Environment, EvaluationResult

env = Environment("small-incident", version="1.2.3")
calls: list[str] = []


@env.tool()
def search_logs(service: str, limit: int = 3) -> list[str]:
    """Find log lines.

    Args:
        service: which service
    """
    calls.append(service)
    return [f"{service}: line {index}" for index in range(limit)]


@env.tool()
async def broken() -> str:
    raise RuntimeError("no such index")


@env.scenario("investigate")
async def investigate(query: str, expected: str = "pool"):
    """Investigate errors."""
    answer = yield f"Investigate: {query}"
    yield EvaluationResult(1.0 if expected in answer else 0.25, info={"calls": len(calls)})


@env.scenario()
def counting(start: int):
    trajectory = yield [{"role": "system", "content": "count"}, {"role": "user", "content": str(start)}]
    yield min(1.0, len(trajectory.trajectory.tool_calls) / 2)


@env.scenario()
async def slow(seconds: float):
    await asyncio.sleep(seconds)
    yield "awake"
    await asyncio.sleep(seconds)
    yield 1.0


@env.scenario()
async def slow_to_grade(seconds: float):
    yield "awake"
    await asyncio.sleep(seconds)
    yield 1.0


@env.scenario()
async def raises():
    raise ValueError("no database")
    yield ""


@env.scenario()
async def not_a_number():
    yield "hello"
    yield float("nan")
'''


@pytest.fixture
def environment_file(tmp_path: Path) -> Path:
    """A file with one environment of several scenarios."""
    path = tmp_path / "env.py"
    path.write_text(INCIDENT)
    return path
