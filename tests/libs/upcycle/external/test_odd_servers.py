"""Servers that refuse a field, echo half an emoji, and take any key; fork servers that die."""

import inspect
import json
import os
import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.support.model_servers import KEY, MODEL, Asked, Said, Turn, openai_shaped, serving

from scenario_runner.settings import ScenarioRunnerSettings
from upcycle import Taskset
from upcycle.external import evaluating
from upcycle.external.evaluating import ExternalEpisode, ExternalOptions, evaluate_tasks
from upcycle.external.naming import ExternalModel, external_model
from upcycle.playing import runtime_hosts
from upcycle.playing.episode import PlayLimits, play_episode
from upcycle.playing.errors import PlayRefused
from upcycle.playing.forking import ForkServer, hosts_of
from upcycle.shell_grader import BashGrader
from upcycle.task_rows import EnvironmentRef, canonical_json

REFUSED = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."


def model_at(url: str, key: str = KEY) -> ExternalModel:
    """As `--agent openai:URL#shop-1` makes it."""
    return external_model(f"openai:{url}/v1#{MODEL}", environ={"UPCYCLE_AGENT_KEY": key})


async def test_every_request_that_is_refused_for_max_tokens_is_asked_again(tasks: Taskset) -> None:
    answer, first = openai_shaped(lambda results: Turn("3")), threading.Barrier(4, timeout=30)

    def newer(asked: Asked) -> Said:
        if "max_tokens" not in asked.body:
            return answer(asked)
        first.wait()  # four have asked before the first hears that it is refused
        return Said(400, {"error": {"message": REFUSED}})

    with serving(newer) as server:
        options = ExternalOptions(group=6, max_concurrent=4)
        runs = await evaluate_tasks(tasks.tasks[:1], model_at(server.url), options)
    assert [(run.failure_detail, run.reward) for run in runs] == [("", 1.0)] * 6
    assert len(server.turns) == 4 + 6  # the two that began later knew it


async def test_a_server_that_refuses_both_fields_is_not_asked_for_ever(tasks: Taskset) -> None:
    answer = openai_shaped(lambda results: Turn("3"))
    with serving(lambda asked: Said(400, REFUSED) if asked.method == "POST" else answer(asked)) as server:
        runs = await evaluate_tasks(tasks.tasks[:1], model_at(server.url))
    assert [run.failure for run in runs] == ["player_failed"]
    assert len(server.turns) == 2


@pytest.mark.parametrize("key", ["3", "tea", "token"])
async def test_a_short_key_of_a_local_server_changes_no_answer(tasks: Taskset, key: str) -> None:
    answer = openai_shaped(lambda r: Turn(r[-1]) if r else Turn("a token", ("stock", {"item": "tea"})))

    def local(asked: Asked) -> Said:
        if "max_tokens" in asked.body:
            return Said(400, REFUSED)  # it holds "token"
        return answer(replace(asked, headers={"authorization": f"Bearer {KEY}"}))

    with serving(local) as server:
        (run,) = await evaluate_tasks(tasks.tasks[:1], model_at(server.url, key))
    assert (run.failure_detail, run.answer, run.reward) == ("", "3", 1.0)


async def test_half_an_emoji_is_cleaned_and_ends_nothing(tasks: Taskset) -> None:
    def policy(results: list[str]) -> Turn:
        return (
            Turn("3 \ud83d") if results else Turn("Let \ude00 me look \U0001f600", ("stock", {"item": "tea"}))
        )

    seen: list[ExternalEpisode] = []
    with serving(openai_shaped(policy)) as server:
        (run,) = await evaluate_tasks(tasks.tasks[:1], model_at(server.url), on_episode=seen.append)
    assert (run.failure_detail, run.answer, run.reward) == ("", "3 ?", 0.0)
    assert "Let ? me look \U0001f600" in json.dumps(seen[0].row, ensure_ascii=False).encode().decode()


async def test_the_episodes_of_a_fork_server_that_died_are_missing_and_say_so(tasks: Taskset) -> None:
    def policy(results: list[str]) -> Turn:
        return Turn("3") if results else Turn("", ("orphan", {}))

    with serving(openai_shaped(policy)) as server:
        options = ExternalOptions(group=3, max_concurrent=1)
        runs = await evaluate_tasks(tasks.tasks[:1], model_at(server.url), options)
    assert [run.failure for run in runs[1:]] == ["environment_lost"] * 2
    assert (
        "the process that forks environment 'shop' was killed by signal 9 (SIGKILL)"
        in runs[-1].failure_detail
    )


async def test_a_bug_in_one_episode_makes_that_one_missing_with_its_traceback(
    tasks: Taskset, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def odd(task: Any, *rest: Any) -> Any:
        if task.slug == "tea":
            raise KeyError("odd")
        return await play_episode(task, *rest)

    monkeypatch.setattr(evaluating, "play_episode", odd)
    seen: list[ExternalEpisode] = []
    with serving(openai_shaped(lambda results: Turn("5"))) as server:
        tea, milk = await evaluate_tasks(tasks.tasks, model_at(server.url), on_episode=seen.append)
    assert (tea.failure, milk.reward) == ("sampler_error", 1.0)
    assert tea.failure_detail.endswith("KeyError: 'odd'")
    (row,) = [one.row for one in seen if one.run is tea]
    assert (row["reward"], row["failure"]["message"]) == (None, "KeyError: 'odd'")
    assert "in odd" in row["failure"]["traceback"]


async def test_an_environment_is_loaded_once_and_away_from_the_event_loop(
    tasks: Taskset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[EnvironmentRef, bool]] = []

    def counting(environment: EnvironmentRef) -> Any:
        loaded.append((environment, threading.current_thread() is threading.main_thread()))
        hosts = hosts_of(environment)
        assert isinstance(hosts, ForkServer) == hasattr(os, "fork")
        return hosts

    monkeypatch.setattr(runtime_hosts, "hosts_of", counting)
    with serving(openai_shaped(lambda results: Turn("3"))) as server:
        runs = await evaluate_tasks(tasks.tasks, model_at(server.url))
    assert [run.failure_detail for run in runs] == ["", ""]
    assert loaded == [(tasks.tasks[0].environment, False)]


async def test_a_failure_of_the_policy_counts_as_it_is_written(tasks: Taskset) -> None:
    def policy(results: list[str]) -> Turn:
        return Turn("", ("stock", {"item": "gone"}))

    seen: list[ExternalEpisode] = []
    with serving(openai_shaped(policy)) as server:
        (run,) = await evaluate_tasks(tasks.tasks[:1], model_at(server.url), on_episode=seen.append)
    row = seen[0].row
    assert (run.reward, run.policy_failure) == (0.0, "process_ended")
    assert (row["reward"], row["success"], row["policy_failure"]) == (0.0, False, "process_ended")


async def test_a_wrong_key_of_gemini_is_said_before_any_episode(tasks: Taskset) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    with serving(lambda asked: Said(400, {"error": {"code": 400, "details": details}})) as server:
        environ = {"GEMINI_BASE_URL": server.url, "GEMINI_API_KEY": KEY}
        with pytest.raises(PlayRefused, match="answered 400: the key is not accepted"):
            await evaluate_tasks(tasks.tasks, external_model("gemini#m", environ=environ))


def test_what_is_played_here_has_the_limits_of_the_fleet() -> None:
    here, fleet = PlayLimits(), ScenarioRunnerSettings.model_fields
    limits = [fleet[name].default for name in ("start_timeout_s", "tool_timeout_s", "grade_timeout_s")]
    assert [here.start_s, here.tool_s, here.grade_s] == limits
    assert inspect.signature(BashGrader).parameters["timeout_s"].default < here.grade_s


async def test_a_scenario_that_fails_on_the_answer_is_tried_on_one_empty_turn_as_in_the_fleet(
    tasks: Taskset,
) -> None:
    arguments = canonical_json({"item": "tea", "wanted": "3", "fails": "last turn"})
    with serving(openai_shaped(lambda results: Turn("3"))) as server:
        asked = [replace(tasks.tasks[0], args_json=arguments)]
        (run,) = await evaluate_tasks(asked, model_at(server.url))
    assert (run.failure, run.policy_failure) == ("", "answer_error")
