"""Rewards: what a grade is, when it may be believed, and how a rubric combines several graders."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

ENVIRONMENT: Final = "environment"
"""Name of the environment's own grader in a combined reward tree."""
_MAX_DEPTH: Final = 32


class FailureKind(StrEnum):
    """The stable words of `episode.failed` that the grader itself uses."""

    ENVIRONMENT_LOST = "environment_lost"
    SCENARIO_ERROR = "scenario_error"
    REWARD_INVALID = "reward_invalid"
    BODY_CORRUPT = "body_corrupt"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"


@dataclass(frozen=True, slots=True)
class StoredBody:
    """A claim check on the stored record."""

    key: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GradingTask:
    """One recorded trajectory that waits for its reward."""

    trajectory_id: str
    episode_id: str
    body: StoredBody
    lease_id: str
    environment_address: str
    published_at: datetime


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a grader may look at. `messages`: the conversation, OpenAI's shape. `wire`: passed on as is."""

    trajectory_id: str
    task_slug: str
    answer: str
    messages: Sequence[Mapping[str, Any]]
    wire: Any


@dataclass(frozen=True, slots=True)
class Subscore:
    """A node of the reward tree; `value` is 0..1."""

    name: str
    weight: float
    value: float
    info: str = ""
    children: tuple["Subscore", ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """A reward and where it comes from."""

    reward: float
    success: bool
    subscores: tuple[Subscore, ...] = ()


@dataclass(frozen=True, slots=True)
class Graded:
    """The reward is valid: announce it."""

    grade: Grade


@dataclass(frozen=True, slots=True)
class CannotGrade:
    """No reward will exist for this episode."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class GradeLater:
    """Something that grading needs is not there now; `waiting_for` names it."""

    delay_s: float
    waiting_for: str


GradeOutcome = Graded | CannotGrade | GradeLater


def why_invalid(grade: Grade) -> str | None:
    """Why a grade may not become a reward, naming the node and its value; None when it may."""
    if not math.isfinite(grade.reward):
        return f"reward is {grade.reward}, expected a finite number"
    for path, subscore, depth in _walk(grade.subscores):
        if depth > _MAX_DEPTH:
            return f"reward tree is deeper than {_MAX_DEPTH} levels at {path[:100]!r}"
        if not (math.isfinite(subscore.value) and 0.0 <= subscore.value <= 1.0):
            return f"subscore {path!r} has value {subscore.value}, expected 0..1"
        if not math.isfinite(subscore.weight):
            return f"subscore {path!r} has weight {subscore.weight}, expected a finite number"
    return None


def _walk(subscores: Sequence[Subscore]) -> Iterator[tuple[str, Subscore, int]]:
    todo = [(subscore.name, subscore, 1) for subscore in reversed(subscores)]
    while todo:
        path, subscore, depth = todo.pop()
        yield path, subscore, depth
        if depth <= _MAX_DEPTH:
            todo += [(f"{path}/{child.name}", child, depth + 1) for child in reversed(subscore.children)]


def combined(environment: Grade, environment_weight: float, extras: Sequence[Subscore]) -> Grade:
    """Weighted mean of the environment's reward and the extra graders; success stays the environment's word.

    Without extras the grade is the environment's, untouched.
    """
    if not extras:
        return environment
    own = Subscore(ENVIRONMENT, environment_weight, environment.reward, children=environment.subscores)
    nodes = (own, *extras)
    total = sum(node.weight for node in nodes)
    reward = sum(node.weight * node.value for node in nodes) / total
    return Grade(reward, environment.success, nodes)


def clipped(grade: Grade, *, max_info_chars: int, with_children: bool) -> Grade:
    """The same reward with a smaller tree: what an event has room for."""
    return replace(
        grade, subscores=tuple(_clip(node, max_info_chars, with_children) for node in grade.subscores)
    )


def _clip(node: Subscore, max_info_chars: int, with_children: bool) -> Subscore:
    children = tuple(_clip(child, max_info_chars, True) for child in node.children) if with_children else ()
    return replace(node, info=node.info[:max_info_chars], children=children)
