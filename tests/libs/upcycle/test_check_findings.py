"""How `upcycle check` says what it found: chance is nothing, what fails alike is one finding."""

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.test_checking import details

from upcycle import Environment
from upcycle.cli.main import run

Play = AsyncGenerator[Any, Any]


async def test_two_tasks_of_ten_whose_answers_share_a_part_by_chance_are_no_cheat() -> None:
    env = Environment("few")

    @env.scenario("ask")
    async def ask(query: str, expected: str) -> Play:
        answer = yield f"Investigate: {query}. One word."
        shares = expected in ("cause-3", "cause-7") and str(answer)[:6] == "cause-" and "\n" not in answer
        yield 1.0 if answer == expected else 0.9 * shares

    tasks = [ask.task(query=f"q{one}", expected=f"cause-{one}") for one in range(10)]
    seen = await env.validate(tasks)
    assert seen.cheats["another task's answer"] == 0.9  # 0.18 on average
    assert details(seen, "cheat") == ""


async def test_a_scenario_that_fails_in_the_same_way_each_time_is_one_finding() -> None:
    env = Environment("failing")

    @env.scenario("ask")
    async def ask(query: str, expected: str) -> Play:
        yield query
        raise KeyError(expected)

    seen = await env.validate([ask.task(query="Hm?", expected="pool")])
    (finding,) = [one for one in seen.findings if one.kind == "raises"]
    assert finding.detail.endswith(f"(the same in {seen.num_plays - 1} other plays)")


async def test_a_tool_that_ends_its_process_is_named() -> None:
    env = Environment("leaving")

    @env.tool()
    def look() -> str:
        sys.exit(0)

    @env.scenario("ask")
    async def ask(query: str, expected: str) -> Play:
        answer = yield query
        yield float(answer == expected)

    seen = await env.validate([ask.task(query="Hm?", expected="pool")])
    assert "its tools: look called sys.exit(0) (test_check_findings.py:" in details(seen, "raises")


def test_what_a_scenario_prints_is_not_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "loud.py"
    file.write_text(
        "from upcycle import Environment, Taskset\nenv = Environment('loud')\n"
        "@env.scenario('ask')\nasync def ask(q: str, expected: str):\n"
        "    answer = yield q\n    print('printed by the scenario')\n    yield float(answer == expected)\n"
        "tasks = Taskset('t', [ask.task(slug='a', q='Hm?', expected='pool')])\n"
    )
    assert run(["check", str(file), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["findings"] == []
    assert "printed by the scenario" not in said.err
    assert "checking a, 1 of 1" in said.err
