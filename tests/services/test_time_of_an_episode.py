"""The limits of one episode, of five services, fit each other: docs/understand/time-of-an-episode.md."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from environment_client import client as environment_client
from event_bus.delivery import BusTimings
from event_bus.topology import REWARD_GRADER, ROLLOUT_SAMPLER_EVAL, ROLLOUT_SAMPLER_TRAIN
from grpo_trainer.settings import GrpoTrainerSettings
from reward_grader import settings as reward_grader
from reward_grader.adapters.judge_places import MAX_PAUSE_S
from reward_grader.domain import ASKING_S
from reward_grader.settings import RewardGraderSettings
from rollout_sampler.settings import RolloutSamplerSettings
from rollout_sampler.usecases import turns
from scenario_runner.domain import peer_facts
from scenario_runner.domain.watched import GAP
from scenario_runner.settings import ScenarioRunnerSettings
from scenario_runner.usecases.leases import GRADER_WAIT_S
from scenario_runner.usecases.overdue import MARGIN_S
from service_kit.settings import ServiceSettings
from upcycle.run_config import MAX_EPISODE_DEADLINE_S, RunSpec

PAGE: Final = Path(__file__).parents[2] / "docs/understand/time-of-an-episode.md"
_NAMED: Final = re.compile(r"`([\w.]+)` \(([\d,]+)(?: s)?\)")


def _defaults(prefix: str, settings: type[ServiceSettings]) -> dict[str, float]:
    """By the name of the variable."""
    assert settings.model_config.get("env_prefix") == prefix
    defaults = {f"{prefix}{name.upper()}": field.default for name, field in settings.model_fields.items()}
    return {name: value for name, value in defaults.items() if isinstance(value, int | float)}


_FIELDS: Final[Mapping[str, Any]] = {field.name: field.default for field in dataclasses.fields(RunSpec)}
DEADLINE_S: Final = float(_FIELDS["episode_deadline_s"])
FLEET: Final = _defaults("SCENARIO_RUNNER_", ScenarioRunnerSettings)
SAMPLER: Final = _defaults("ROLLOUT_SAMPLER_", RolloutSamplerSettings)
GRADER: Final = _defaults("REWARD_GRADER_", RewardGraderSettings)
TRAINER: Final = _defaults("GRPO_TRAINER_", GrpoTrainerSettings)
PUBLISH_S: Final = BusTimings().publish_budget_s
OTHERS: Final[Mapping[str, float]] = {
    "episode_deadline_s": DEADLINE_S,
    "MAX_EPISODE_DEADLINE_S": MAX_EPISODE_DEADLINE_S,
    "MARGIN_S": MARGIN_S,
    "GAP": GAP.total_seconds(),
    "GRADER_WAIT_S": GRADER_WAIT_S,
    "_MAX_DEADLINES": peer_facts._MAX_DEADLINES,
    "ASKING_S": ASKING_S,
    "MAX_PAUSE_S": MAX_PAUSE_S,
    "publish_budget_s": PUBLISH_S,
    "_LONGEST_PLAY_S": ROLLOUT_SAMPLER_TRAIN.handler_timeout_s,
    "REWARD_GRADER.handler_timeout_s": REWARD_GRADER.handler_timeout_s,
    "REWARD_GRADER.ack_wait_s": REWARD_GRADER.ack_wait_s,
}

LEASE_S: Final = FLEET["SCENARIO_RUNNER_LEASE_S"]
START_S: Final = FLEET["SCENARIO_RUNNER_START_TIMEOUT_S"]
GRADE_S: Final = FLEET["SCENARIO_RUNNER_GRADE_TIMEOUT_S"]
TOOL_S: Final = SAMPLER["ROLLOUT_SAMPLER_TOOL_TIMEOUT_S"]
CALL_S: Final = GRADER["REWARD_GRADER_GRADE_TIMEOUT_S"]
JUDGE_S: Final = GRADER["REWARD_GRADER_JUDGE_TIMEOUT_S"]
GONE_S: Final = GRADER["REWARD_GRADER_GONE_AFTER_S"]
LONGEST_WAIT_S: Final = peer_facts._MAX_DEADLINES * DEADLINE_S
"""How long the planner waits for a grader that works."""

RULES: Final[Mapping[str, tuple[float, float]]] = {
    "an import and a scenario's start end before the sampler's call": (
        FLEET["SCENARIO_RUNNER_IMPORT_TIMEOUT_S"] + START_S,
        SAMPLER["ROLLOUT_SAMPLER_OPEN_TIMEOUT_S"],
    ),
    "the grader waits no longer for a replica than its environment lives": (GONE_S, GRADER_WAIT_S),
    "a tool's limit, and the time to say so, end before the sampler's call": (
        FLEET["SCENARIO_RUNNER_TOOL_TIMEOUT_S"] + environment_client._ANSWER_MARGIN_S,
        TOOL_S,
    ),
    "a call of a tool fits in an episode": (TOOL_S, DEADLINE_S),
    "a request to an engine fits in an episode": (SAMPLER["ROLLOUT_SAMPLER_TURN_TIMEOUT_S"], DEADLINE_S),
    "a late start fits in an episode": (SAMPLER["ROLLOUT_SAMPLER_LATE_START_S"], DEADLINE_S),
    "a call that is cut off is reported before the planner decides": (turns._ANSWER_MARGIN_S, MARGIN_S),
    "the sampler cuts no episode that a run may ask for": (
        MAX_EPISODE_DEADLINE_S,
        SAMPLER["ROLLOUT_SAMPLER_EPISODE_TIMEOUT_S"],
    ),
    "the longest episode is opened, played, stored and published in one delivery": (
        SAMPLER["ROLLOUT_SAMPLER_OPEN_TIMEOUT_S"]
        + MAX_EPISODE_DEADLINE_S
        + SAMPLER["ROLLOUT_SAMPLER_RETRY_S"]
        + PUBLISH_S,
        min(ROLLOUT_SAMPLER_TRAIN.handler_timeout_s, ROLLOUT_SAMPLER_EVAL.handler_timeout_s),
    ),
    "a lease outlasts the play, and what the grader waits for its replica": (DEADLINE_S + GONE_S, LEASE_S),
    "a grade ends before the grader's call": (GRADE_S, CALL_S),
    "a grade, and the same of a fresh instance, end before the lease": (GRADE_S + START_S + GRADE_S, LEASE_S),
    "a grader's record is another one's before the lease ends": (REWARD_GRADER.ack_wait_s + CALL_S, LEASE_S),
    "a record that waits for its judge comes again before the lease ends": (
        MAX_PAUSE_S + CALL_S,
        LEASE_S + JUDGE_S,
    ),
    "one delivery has the time of all that it may ask": (
        CALL_S + ASKING_S + JUDGE_S + GRADER["REWARD_GRADER_EXTRA_TIMEOUT_S"] + reward_grader._REST_S,
        REWARD_GRADER.handler_timeout_s,
    ),
    "an environment that is gone is named before the planner gives the grader up": (
        GONE_S + CALL_S,
        LONGEST_WAIT_S,
    ),
    "a judge that is away is named before the planner gives the grader up": (
        GRADER["REWARD_GRADER_JUDGE_GONE_AFTER_S"] + MAX_PAUSE_S + JUDGE_S + CALL_S,
        LONGEST_WAIT_S,
    ),
    "a group is announced again before a run that was stopped ends without its trainer": (
        FLEET["SCENARIO_RUNNER_SETTLE_DEADLINE_S"],
        FLEET["SCENARIO_RUNNER_STOP_GRACE_S"],
    ),
    "another trainer takes a model before a run that was cancelled ends without it": (
        2 * TRAINER["GRPO_TRAINER_LEASE_S"],
        FLEET["SCENARIO_RUNNER_CANCEL_GRACE_S"],
    ),
}
"""What must fit, by name, and what it must fit in: seconds of the defaults."""


@pytest.mark.parametrize("rule", RULES)
def test_the_defaults_fit(rule: str) -> None:
    needed_s, given_s = RULES[rule]
    assert needed_s <= given_s, f"{rule}: {needed_s:g} s do not fit in {given_s:g} s"


def test_the_page_has_the_limits_that_the_code_has() -> None:
    text = PAGE.read_text()
    known = {**FLEET, **SAMPLER, **GRADER, **TRAINER, **OTHERS}
    said = [(name, float(number.replace(",", ""))) for name, number in _NAMED.findall(text)]
    assert said == [(name, known.get(name)) for name, _ in said]
    assert not [name for name in OTHERS if f"`{name}` (" not in text]


def test_what_the_page_adds_up_is_what_is_left() -> None:
    text = PAGE.read_text()
    assert f"the rest of the lease, at least {min(LEASE_S - DEADLINE_S, GRADER_WAIT_S):g} s" in text
    assert f"has its environment for {GRADER_WAIT_S:g} s more" in text
    judge_wait_s = GRADER["REWARD_GRADER_JUDGE_GONE_AFTER_S"]
    shortest_s = judge_wait_s / peer_facts._MAX_DEADLINES
    assert f"A judge that is away is waited for longer ({judge_wait_s:g} s) than ten deadlines" in text
    assert f"below {shortest_s:g} s: its episodes end as `timeout`" in text
