"""Runs over the real service: each is judged by the source that lay there when it was submitted."""

from pathlib import Path
from typing import Any

from tests.services.scenario_runner.conftest import Start
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import (
    arith,
    finished,
    play_to_grade,
    refusal,
    register,
    run_spec,
    sampling,
    submit,
)

from upcycle.environment.source_files import source_digest

WRONG = "0.25"
"""What a wrong answer earns in arith.py; the second member of a group gives one."""


def edit(path: Path, worth: str) -> str:
    """Pay a wrong answer this much; the source digest."""
    text = (ENVIRONMENTS / "arith.py").read_text()
    assert f"else {WRONG}," in text
    path.write_text(text.replace(f"else {WRONG},", f"else {worth},"))
    return source_digest(path)


async def test_a_run_keeps_its_source_over_an_edit_and_a_restart_and_the_next_run_has_the_edit(
    start_runner: Start, tmp_path: Path
) -> None:
    path = tmp_path / "shop" / "arith.py"
    path.parent.mkdir()
    before = edit(path, WRONG)
    taskset = arith(2)
    taskset.environment.python.path = str(path)
    first = await start_runner()
    await register(first, taskset)
    old = await submit(first, run_spec(), "r1")
    await first.service.stop()
    after = edit(path, "0.75")
    second = await start_runner()
    new = await submit(second, run_spec(), "r2")
    assert (old.source_digest, new.source_digest) == (before, after)
    judged: dict[tuple[str, int], set[float]] = {}

    async def play(request: Any) -> None:
        key = (request.episode.run_id, request.episode.member)
        judged.setdefault(key, set()).add(await play_to_grade(second, request))

    async with sampling(second, play):
        results = [await finished(second, run.run_id) for run in (old, new)]
    assert judged == {
        (old.run_id, 0): {1.0},
        (old.run_id, 1): {0.25},
        (new.run_id, 0): {1.0},
        (new.run_id, 1): {0.75},
    }
    assert [result.run.source_digest for result in results] == [before, after]
    assert (await submit(second, run_spec(), "r1")).source_digest == before  # the same request again


async def test_a_run_of_an_environment_that_is_gone_is_refused_at_submit(
    start_runner: Start, tmp_path: Path
) -> None:
    path = tmp_path / "arith.py"
    edit(path, WRONG)
    taskset = arith(1)
    taskset.environment.python.path = str(path)
    runner = await start_runner()
    await register(runner, taskset)
    path.unlink()
    error = await refusal(submit(runner, run_spec()))
    assert error.code().name == "INVALID_ARGUMENT"
    assert f"environment of taskset 'sums' cannot be read: no such file: {path}" in (error.details() or "")
