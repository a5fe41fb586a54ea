"""Rewards: what a grade is, when it is valid, and how extra graders are combined with the environment's."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from blob_store import BlobRef
from environment_client import Lease
from episodes import EpisodeIdentity, Split
from upcycle.transcripts import Answer, Transcript, Turn

ENVIRONMENT: Final = "environment"
"""Name of the environment's own grader in a combined reward tree."""
ASKING_S: Final = 600.0
"""How long one delivery asks judges; the next one goes on where it stopped."""
_MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True)
class PolicyFailure:
    """A failure that the policy caused. rule: by which it is the policy's."""

    kind: str
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class GradingTask:
    """One recorded trajectory that waits for its reward."""

    identity: EpisodeIdentity
    body: BlobRef
    lease: Lease
    published_at: datetime
    failure: PolicyFailure | None = None
    """The policy ended the episode by it: there is nothing to grade."""


@dataclass(frozen=True, slots=True)
class GraderTranscript:
    """What an extra grader sees. messages: the conversation in the form of OpenAI's API; turns and states: as
    a scenario gets them."""

    trajectory_id: str
    task_slug: str
    answer: str
    messages: Sequence[Mapping[str, Any]]
    turns: tuple[Turn, ...] = ()
    states: tuple[Any, ...] = ()

    def as_answer(self) -> Answer:
        """The answer that a `Grader` or `Rubric` of the SDK takes."""
        return Answer(self.answer, Transcript(self.turns, self.states))


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
    failure: PolicyFailure | None = None
    """Of the policy, for which the reward is 0."""
    turn_rewards: tuple[float, ...] = ()
    """What each turn earns by itself, 0..1, as the scenario says; empty where it says nothing."""


@dataclass(frozen=True, slots=True)
class ExtraGrader:
    """A grader that the operator adds beside the environment's. score: gives 0..1; all else is refused by
    the grader's name."""

    name: str
    weight: float
    score: Callable[[GraderTranscript], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class ExtraGraders:
    """Which extra graders count and how much; without any, the environment's reward is the reward."""

    environment_weight: float = 1.0
    graders: tuple[ExtraGrader, ...] = ()
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Judge:
    """A model that scenarios may ask about an answer. name: as `LLMJudgeGrader(model=...)` writes it, "" for
    the default one. url: of an OpenAI API."""

    name: str
    url: str
    model: str
    key: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """Which one it was, as the reward tree says it."""
        return (
            self.model if self.name.endswith(self.model) or not self.name else f"{self.model} ({self.name})"
        )


@dataclass(frozen=True, slots=True)
class JudgeLimits:
    """answer_s: the longest that one answer may take, tries together. gone_after_s: how long after its record
    a judge that does not answer is waited for. max_tokens: of one answer. at_once: questions to one judge;
    together: to all of them."""

    answer_s: float = 120.0
    gone_after_s: float = 300.0
    max_tokens: int = 4096
    at_once: int = 24
    together: int = 36


@dataclass(frozen=True, slots=True)
class Graded:
    """The reward is valid: publish it."""

    grade: Grade


@dataclass(frozen=True, slots=True)
class CannotGrade:
    """The episode will have no reward. kind: an EpisodeFailure, or the word that the environment sent."""

    kind: str
    detail: str


GradeOutcome = Graded | CannotGrade


class UnknownSession(Exception):
    """No recorded session of this key has this id. Reason of the status: UNKNOWN_SESSION."""

    def __init__(self, session_id: str, why: str = "") -> None:
        super().__init__(
            f"no session {session_id!r} of this key is recorded"
            + (f": {why}" if why else "; a session is recorded with its first answered call")
        )


class SessionGraded(Exception):
    """The session has another reward, or none came within its retention. Reason: SESSION_GRADED."""


@dataclass(frozen=True, slots=True)
class SessionGrade:
    """What a client says its recorded session earned. group: as the client calls it, or empty."""

    session_id: str
    key_id: str
    grade: Grade
    group: str
    split: Split


def why_invalid(grade: Grade) -> str | None:
    """Why a grade may not become a reward, naming the node and its value; None when it may."""
    if not math.isfinite(grade.reward):
        return f"reward is {grade.reward}, expected a finite number"
    for at, value in enumerate(grade.turn_rewards):
        if not 0.0 <= value <= 1.0:
            return f"turn_rewards[{at}] is {value}, expected 0..1"
    for path, subscore, depth in _walk(grade.subscores):
        if depth > _MAX_DEPTH:
            return f"reward tree is deeper than {_MAX_DEPTH} levels at {path[:100]!r}"
        if not 0.0 <= subscore.value <= 1.0:
            return f"subscore {path!r} has value {subscore.value}, expected 0..1"
        if not math.isfinite(subscore.weight):
            return f"subscore {path!r} has weight {subscore.weight}, expected a finite number"
    return None


def _walk(subscores: Sequence[Subscore]) -> Iterator[tuple[str, Subscore, int]]:
    todo = [(subscore.name, subscore, 1) for subscore in reversed(subscores)]
    while todo:
        path, subscore, depth = todo.pop()
        yield path, subscore, depth
        todo += [(f"{path}/{child.name}", child, depth + 1) for child in reversed(subscore.children)]


def combined(environment: Grade, environment_weight: float, scores: Sequence[Subscore]) -> Grade:
    """Weighted mean of the environment's reward and the extra scores; success and what turns earn are the
    environment's alone.

    Without extra scores the grade is the environment's, unchanged.
    """
    if not scores:
        return environment
    own = Subscore(ENVIRONMENT, environment_weight, environment.reward, children=environment.subscores)
    nodes = (own, *scores)
    total = sum(node.weight for node in nodes)
    reward = sum(node.weight * node.value for node in nodes) / total
    return Grade(reward, environment.success, nodes, turn_rewards=environment.turn_rewards)


def clipped(grade: Grade, *, max_info_chars: int, with_children: bool) -> Grade:
    """The same reward with a smaller tree: what an event has room for."""
    return replace(
        grade, subscores=tuple(_clip(node, max_info_chars, with_children) for node in grade.subscores)
    )


def _clip(node: Subscore, max_info_chars: int, with_children: bool) -> Subscore:
    children = tuple(_clip(child, max_info_chars, True) for child in node.children) if with_children else ()
    return replace(node, info=node.info[:max_info_chars], children=children)
