"""`environment.validate` and `upcycle check`: gold passes, every cheat that pays is named."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.seeds.table import LISTINGS

from upcycle import Environment
from upcycle.checking import CheckFinding, Validation, validate
from upcycle.cli.main import run
from upcycle.errors import UpcycleError
from upcycle.graders import Rubric, exact_match, grader
from upcycle.leaks import leaked, secret_arguments
from upcycle.scenario import Reference

FINDINGS: Final = ("pool", "deploy", "certificate")
Play = AsyncGenerator[Any, Any]


def kinds(seen: Validation) -> set[str]:
    return {finding.kind for finding in seen.findings}


def details(seen: Validation, kind: str) -> str:
    return "\n".join(map(str, (finding for finding in seen.findings if finding.kind == kind)))


async def test_a_sound_scenario_has_no_finding() -> None:
    env = Environment("sound")

    @env.tool()
    def logs(service: str) -> str:
        return f"{service}: nothing"

    @env.scenario("ask")
    async def ask(query: str, expected: str) -> Play:
        answer = yield f"Investigate: {query}. One word."
        yield Rubric([exact_match(expected)]).grade(answer)

    seen = await env.validate([ask.task(query=f"incident {one}"[:11], expected=one) for one in FINDINGS])
    assert seen.findings == ()
    assert set(seen.gold.values()) == {1.0}
    assert set(seen.cheats) == {
        "empty",
        "constant",
        "another task's answer",
        "dump",
        "echo",
        "idle calls",
        "length",
        "hostile",
    }
    assert max(seen.cheats.values()) == 0.0
    assert seen.spread == 1.0


async def test_the_answer_of_another_task_counts_on_average_over_the_tasks() -> None:
    """It may share a part with the right one by chance; what pays for any answer of the kind is named."""

    def graded(half: Any) -> Environment:
        env = Environment("halves")

        @env.scenario("ask")
        async def ask(query: str, expected: str) -> Play:
            answer = yield f"Investigate: {query}. One word."
            yield 1.0 if answer == expected else half(str(answer), expected)

        return env

    async def found(half: Any) -> list[str]:
        env = graded(half)
        tasks = [env.scenarios["ask"].task(query=f"q{one}", expected=f"cause-{one}") for one in range(20)]
        return [str(one) for one in (await env.validate(tasks)).findings]

    assert await found(lambda answer, expected: 0.5 * (answer == "cause-0" and expected == "cause-7")) == []
    (paid,) = await found(lambda answer, expected: 0.5 * (answer[:6] == "cause-" and "\n" not in answer))
    assert paid == "20 tasks: another task's answer earns 0.5 on average, limit 0.05"


@pytest.mark.parametrize(
    ("pays", "cheat"),
    [
        (lambda answer: "pool" in answer, "dump"),
        (lambda answer: not answer, "empty"),
        (lambda answer: "Investigate" in answer, "echo"),
        (lambda answer: len(answer) > 5000 and answer[0] != "[", "length"),
        (lambda answer: len(answer.trajectory.tool_calls) > 1, "idle calls"),
        (lambda answer: "not know" in answer, "constant"),
        (lambda answer: answer == "null", "hostile"),
    ],
)
async def test_each_cheat_that_pays_is_named_with_its_grader(pays: Any, cheat: str) -> None:
    env = Environment("gamed")

    @env.tool()
    def logs(service: str, kind: int, deep: list[str]) -> str:
        return "nothing"

    @env.scenario("ask")
    async def ask(query: str) -> Play:
        answer = yield f"Investigate: {query}"
        lenient = grader(lambda text: answer == "gold" or pays(text), name="lenient")
        yield Rubric([lenient]).grade(answer)

    @ask.gold
    def solved(query: str) -> str:
        return "gold"

    seen = await env.validate([ask.task(query="pool")])
    assert details(seen, "cheat").startswith(f"{seen.findings[0].task}: {cheat} (")
    assert "paid by lenient 1" in details(seen, "cheat")
    assert kinds(seen) == {"cheat"}


async def test_a_part_that_a_cheat_earns_counts_from_the_limit_on() -> None:
    env = Environment("partly")

    @env.scenario("ask")
    async def ask(expected: str) -> Play:
        answer = yield "What is it?"
        yield 1.0 if answer == expected else 0.3 if len(answer) > 5_000 else 0.05

    tasks = [ask.task(expected="pool")]
    seen = await env.validate(tasks)
    assert kinds(seen) == {"cheat"}
    assert {finding.detail.split(" (")[0] for finding in seen.findings} == {"length", "hostile"}
    assert (seen.cheats["length"], seen.cheats["empty"]) == (0.3, 0.05)
    assert (await env.validate(tasks, max_cheat=0.3)).is_clean


async def test_a_gold_answer_that_fails_and_one_with_calls() -> None:
    env = Environment("counted")
    made: list[str] = []

    @env.tool()
    def write(text: str) -> str:
        made.append(text)
        return "ok"

    @env.scenario("ask")
    async def ask(wanted: str) -> Play:
        made.clear()
        yield "Write it down."
        yield 1.0 if wanted in made else 0.0

    @ask.gold
    def solved(wanted: str) -> Reference:
        return Reference("done", (("write", {"text": wanted[:7]}),))

    seen = await env.validate([ask.task(wanted="short"), ask.task(wanted="too long")])
    (finding,) = seen.findings
    assert (finding.kind, "earns 0 and is no success" in finding.detail) == ("gold", True)
    assert sorted(seen.gold.values()) == [0.0, 1.0]


async def test_answers_that_make_the_grader_raise_are_named() -> None:
    env = Environment("careless")

    @env.scenario("ask")
    async def ask(query: str) -> Play:
        answer = yield query
        if answer == "[]":
            raise ConnectionError("the policy pulled the plug")
        yield float(json.loads(answer)["n"] == 3) if answer else 0.0

    seen = await env.validate([ask.task(query="q")])
    assert kinds(seen) == {"raises", "external", "gold"}
    assert "KeyError" in details(seen, "raises") or "TypeError" in details(seen, "raises")
    assert "played again instead of earning 0" in details(seen, "external")
    assert (
        CheckFinding("gold", "scenario ask", "no gold answer: declare one with @scenario.gold")
        in seen.findings
    )


async def test_a_secret_in_the_prompt_or_in_a_tool_result_is_found() -> None:
    env = Environment("leaky")
    current: list[str] = []

    @env.tool()
    def status() -> str:
        return f"hint: {current[-1].upper()}" if current[-1] == "deploy" else "fine"

    @env.scenario("ask")
    async def ask(expected: str) -> Play:
        current.append(expected)
        answer = yield "It is the  POOL." if expected == "pool" else "What is it?"
        yield exact_match(expected)(answer).value

    seen = await env.validate([ask.task(expected=one, slug=one) for one in FINDINGS])
    assert kinds(seen) == {"leak"}
    assert details(seen, "leak").splitlines() == [
        "pool: its prompt holds 'pool', which the agent has to find",
        "deploy: what tool status says to {} holds 'deploy', which the agent has to find",
    ]


def test_a_list_of_candidates_gives_nothing_away() -> None:
    assert leaked(["pool"], "one of pool, deploy", ["pool", "deploy"]) == []
    assert leaked(["pool"], "the Pool", ["pool", "deploy"]) == ["pool"]
    assert leaked(["ok"], "ok") == []
    assert secret_arguments({"expected_finding": "pool", "query": "x y z", "answer": 3, "gold": "no"}) == [
        "pool"
    ]


async def test_nothing_to_check_is_refused() -> None:
    with pytest.raises(UpcycleError, match="nothing to check"):
        await Environment("empty").validate([])


async def test_a_prompt_that_waits_for_ever_and_a_grader_that_does_are_named_and_the_check_ends() -> None:
    env = Environment("slow")

    @env.scenario("ask")
    async def ask(expected: str, hangs: str) -> Play:
        if hangs == "prompt":
            await asyncio.Event().wait()
        answer = yield "One word."
        if hangs == "grade":
            await asyncio.Event().wait()
        yield 1.0 if answer == expected else 0.0

    hangs = ("grade", "prompt", "prompt", "", "")
    tasks = [ask.task(slug=f"t{at}", expected=f"answer {at}", hangs=how) for at, how in enumerate(hangs)]
    seen = await env.validate(tasks, play_s=0.2)
    assert list(map(str, seen.findings)) == [
        "t0: gold: not graded within 0.2 s",
        "t1: it gave no prompt within 0.2 s",
        "t2: it gave no prompt within 0.2 s",
    ]
    assert (seen.num_tasks, seen.num_given) == (3, 5)
    assert seen.stopped == "3 plays did not end within 0.2 s"


async def test_of_many_tasks_some_are_played_evenly_apart_and_for_a_bounded_time() -> None:
    env = Environment("many")
    played: set[int] = set()

    @env.scenario("ask")
    async def ask(number: int, expected: str) -> Play:
        played.add(number)
        answer = yield "One word."
        yield 1.0 if answer == expected else 0.0

    tasks = [ask.task(number=at, expected=f"answer {at}") for at in range(1000)]
    seen = await env.validate(tasks, max_tasks=4)
    assert (seen.num_tasks, seen.num_given, seen.num_plays, seen.stopped) == (4, 1000, 4 * 16, "")
    assert played == {0, 250, 500, 750}
    seen = await env.validate(tasks, total_s=0)
    assert (seen.num_tasks, seen.num_plays, seen.stopped) == (0, 0, "0 s are over")


def test_a_prompt_that_blocks_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(
        "import asyncio, time\nfrom upcycle import Environment\n"
        "env = Environment('blocking')\n"
        "@env.scenario('ask')\nasync def ask(expected: str):\n"
        "    try:\n        time.sleep(600)\n    except Exception:\n        pass\n"
        "    yield 'Hm?'\n    yield 1.0\n"
        "seen = asyncio.run(env.validate([ask.task(expected='pool')], play_s=0.2))\n"
        "print(*seen.findings)\n"
    )
    done = subprocess.run(
        [sys.executable, "env.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "it gave no prompt within 0.2 s" in done.stdout, done.stderr


def test_the_command_names_the_substring_check_of_the_seeds(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(
        (LISTINGS / "env.txt").read_text() + (LISTINGS / "scenario.txt").read_text()
    )
    (tmp_path / "tasks.py").write_text(
        "from env import investigate_issue as ask\nfrom upcycle import Taskset\n"
        "_rows = [ask.task(query=f'q{n}', expected_finding=f'finding {n}') for n in range(2)]\n"
        "TASKS = Taskset('seed', _rows)\n"
    )

    def said(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "upcycle"), "check", "tasks.py", *options]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = said("--json")
    row = json.loads(done.stdout)
    assert (done.returncode, row["taskset"], row["spread"], row["cheats"]["dump"]) == (1, "seed", 1.0, 1.0)
    assert {finding["kind"] for finding in row["findings"]} == {"cheat"}
    assert said("--max-cheat", "2").returncode == 2
    assert said("--taskset", "other").returncode == 2
    assert "seed: 1 of 2 tasks (--limit 2 plays all), " in said("--limit", "1").stdout


def test_a_file_that_runs_a_loop_of_its_own_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the example of docs/understand/rewards.md does."""
    page = (Path(__file__).parents[3] / "docs" / "understand" / "rewards.md").read_text()
    example = next(one for one in page.split("```python\n") if "checked.validate(tasks)" in one)
    (tmp_path / "capitals.py").write_text(example.partition("```")[0])
    monkeypatch.chdir(tmp_path)
    assert run(["check", "capitals.py"]) == 0
    assert "tasks: 2 of 2 tasks, " in capsys.readouterr().out


async def test_graders_read_the_states_that_an_episode_would_have() -> None:
    env = Environment("with-states")
    looks: list[int] = []

    @env.state()
    def looked() -> int:
        return len(looks)

    @env.tool()
    def look() -> str:
        looks.append(1)
        return "nothing"

    @env.scenario()
    async def ask(expected: str) -> Play:
        answer = yield "Which one?"
        states = answer.trajectory.states
        looked_at_all = states[-1] > states[0]  # without a state this would raise
        yield float(answer == expected and looked_at_all)

    @ask.gold
    def solved(expected: str) -> Reference:
        return Reference(expected, (("look", {}),))

    seen = await env.validate([ask.task(expected=one) for one in FINDINGS])
    assert details(seen, "raises") == ""
    assert set(seen.gold.values()) == {1.0}


async def test_a_models_answer_is_a_cheat_at_the_tasks_whose_gold_answer_it_does_not_hold() -> None:
    env = Environment("habit")

    @env.scenario("ask")
    async def ask(expected: str) -> Play:
        answer = yield "What is it?"
        yield 1.0 if expected in answer or answer.startswith("I think") else 0.0

    tasks = [ask.task(slug=one, expected=one) for one in ("pool", "deploy", "disk")]
    for answer, earned in (("I think so", 3), ("the pool", 0)):
        seen = await validate(env, tasks, answers=[answer])
        habits = [
            one for one in seen.findings if one.detail.startswith(f"an answer of the model ({answer!r})")
        ]
        assert [str(one).split(":")[0] for one in habits] == ([f"{earned} tasks"] if earned else []), answer
