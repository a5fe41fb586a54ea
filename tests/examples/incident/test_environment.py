"""The environment through the SDK, as the platform drives it: prompt, tools, reward tree, tasksets."""

from collections import Counter
from pathlib import Path

import pytest
from examples.incident.env import TOOL_DELAY_MS, env, investigate
from examples.incident.grading import WEIGHTS
from examples.incident.tasks import held_out, train
from examples.incident.world import CAUSES, draw_incident

from upcycle import Answer, EvaluationResult
from upcycle.environment import load_environment
from upcycle.errors import ArgumentsInvalid, UnknownName

FOLDER = Path(__file__).parents[3] / "examples" / "incident"


async def call(name: str, **arguments: str) -> str:
    return (await env.call_tool(name, arguments)).text


async def play(answer: str | None, seed: int = 5, extra_calls: int = 0) -> EvaluationResult:
    """The right investigation through the tools; `answer` None gives the right diagnosis."""
    incident = draw_incident("train", seed)
    started = investigate.play({"split": "train", "seed": seed})
    prompt = await started.start()
    assert f"Alert: {incident.alerting} is failing" in str(prompt)
    issues = await call("list_issues")
    line = next(line for line in issues.splitlines() if incident.alerting in line)
    issue = line.split()[1]
    assert incident.faulty in await call("get_stack_trace", issue_id=issue)
    await call("search_logs", service=incident.faulty)
    await call("recent_deploys", service=incident.faulty)
    for _ in range(extra_calls):
        await call("list_issues")
    right = f"service: {incident.faulty} cause: {incident.cause}"
    return await started.grade(Answer(right if answer is None else answer))


async def test_the_right_investigation_scores_one_with_every_subscore() -> None:
    result = await play(None)
    assert result.score == pytest.approx(1.0)
    assert result.success is True
    assert {part.name: (part.value, part.weight) for part in result.subscores} == {
        name: (1.0, weight) for name, weight in WEIGHTS.items()
    }


async def test_needless_calls_cost_brevity_only() -> None:
    result = await play(None, extra_calls=2)
    assert result.score == pytest.approx(0.95)
    assert result.success is True


@pytest.mark.parametrize("answer", ["", "service: amber-api cause: bad_deploy", "\ud7ff\u200f", "no idea"])
async def test_a_wrong_answer_scores_zero_and_says_why(answer: str) -> None:
    result = await play(answer)
    assert (result.score, result.success) == (0.0, False)
    assert result.info["reason"]


async def test_tools_take_the_time_that_the_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOOL_DELAY_MS, "20")
    slept_s: list[float] = []
    monkeypatch.setattr("examples.incident.world.time.sleep", slept_s.append)
    result = await play(None)
    assert slept_s == [0.02] * 4
    assert result.score == pytest.approx(1.0)


async def test_a_tool_before_the_scenario_is_an_error_the_agent_can_read() -> None:
    result = await env.call_tool("list_issues", {})
    assert result.is_error
    assert "investigate" in result.text


async def test_bad_tool_arguments_are_refused_and_unknown_tools_are_named() -> None:
    started = investigate.play({"split": "train", "seed": 1})
    await started.start()
    assert (await env.call_tool("search_logs", {"issue_id": "x"})).is_error
    assert (await env.call_tool("search_logs", {"service": 7})).is_error
    with pytest.raises(UnknownName, match="list_issues"):
        await env.call_tool("give_me_the_answer", {})
    await started.close()


@pytest.mark.parametrize("arguments", [{"split": "test", "seed": 1}, {"split": "train", "seed": "x"}, {}])
def test_bad_task_arguments_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ArgumentsInvalid):
        investigate.play(arguments)


def test_the_tasksets_are_disjoint_balanced_and_large_enough() -> None:
    assert (train.split, held_out.split) == ("train", "held_out")
    assert len(train) >= 512
    assert Counter(task.family for task in held_out) == dict.fromkeys(CAUSES, 30)
    assert not {task.digest for task in train} & {task.digest for task in held_out}
    assert not {task.args["seed"] for task in train} & {task.args["seed"] for task in held_out}


def test_a_tasks_family_is_its_incidents_cause() -> None:
    for task in (*train.tasks[:20], *held_out.tasks[:20]):
        assert task.family == draw_incident(task.args["split"], task.args["seed"]).cause


def test_the_file_loads_by_path_as_the_platform_loads_it() -> None:
    assert load_environment(FOLDER / "env.py").name == "incident"
    assert held_out.environment.path == str(FOLDER / "env.py")


async def test_no_cheat_pays_and_the_gold_diagnosis_does() -> None:
    seen = await env.validate(held_out.tasks[:12])
    assert seen.findings == ()
    assert min(seen.gold.values()) == pytest.approx(1.0)
    assert max(seen.cheats.values()) == 0.0
