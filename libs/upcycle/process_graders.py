"""Graders that look at how the answer came about, and what keeps them from paying for show.

A process part never raises what a wrong answer earns: bonuses are paid where the task is solved, penalties
and lengths only take away.
"""

import math
from collections.abc import Callable

from upcycle.errors import DefinitionError
from upcycle.rewards import TURN_REWARDS, unit_interval
from upcycle.rubrics import Grader, Verdict
from upcycle.transcripts import Transcript, Turn


def transcript_of(answer: str) -> Transcript:
    """What led to the answer; empty for plain text."""
    found = getattr(answer, "trajectory", None)
    return found if isinstance(found, Transcript) else Transcript()


def well_formed_calls(*, name: str = "well_formed_calls") -> Grader:
    """The share of tool calls that the environment took; 0 without a call. Pay it with `when_solved`."""

    def score(answer: str) -> Verdict:
        calls = transcript_of(answer).tool_calls
        failed = [call.name for call in calls if call.is_error]
        value = 1.0 - len(failed) / len(calls) if calls else 0.0
        return value, {"calls": len(calls), "failed": failed[:5]}

    return Grader(name, score)


def when_solved(bonus: Grader, task: Grader, *, at: float = 1.0) -> Grader:
    """A bonus, for form or style, that pays only where `task` scores at least `at`, 0 < at <= 1: an answer
    in perfect form that failed its task earns nothing for the form."""
    if not 0 < at <= 1:
        raise DefinitionError(f"when_solved: at is {at!r}", "it is a score above 0 and at most 1")

    def score(answer: str) -> Verdict:
        solved = task(answer).value
        if solved < at:
            return 0.0, {"task": task.name, "scored": solved, "needed": at}
        return bonus.score(answer)

    return Grader(bonus.name, score, bonus.weight)


def step_penalty(task: Grader, *, free: int, each: float) -> Grader:
    """What `task` scores, less `each` for every tool call above `free`, never below 0."""
    if free < 0 or not math.isfinite(each) or each <= 0:
        raise DefinitionError(
            f"step_penalty: free is {free}, each is {each!r}", "calls that cost nothing, and a price above 0"
        )

    def score(answer: str) -> Verdict:
        value, info = task.score(answer)
        calls = len(transcript_of(answer).tool_calls)
        penalty = each * max(0, calls - free)
        return max(0.0, unit_interval(value, task.name) - penalty), {
            **info,
            "calls": calls,
            "penalty": penalty,
        }

    return Grader(task.name, score, task.weight, task.required)


def length_normalized(task: Grader, *, most_chars: int) -> Grader:
    """What `task` scores, times most_chars / length where all that the agent wrote is longer. Length never
    pays, and a short answer is no better than one of most_chars."""
    if most_chars < 1:
        raise DefinitionError(f"length_normalized: most_chars is {most_chars}", "give at least 1")

    def score(answer: str) -> Verdict:
        value, info = task.score(answer)
        written = sum(len(turn.text) for turn in transcript_of(answer).turns)
        length = max(written, len(answer))
        share = min(1.0, most_chars / max(1, length))
        return unit_interval(value, task.name) * share, {**info, "chars": length, "most_chars": most_chars}

    return Grader(task.name, score, task.weight, task.required)


def turn_rewards(
    of_turn: Callable[[Turn], float | bool], *, task: Grader | None = None, name: str = "turn_rewards"
) -> Grader:
    """The mean of what each turn earns: empty turns count, so that more turns do not earn more. The list of
    them goes with the grade, as `turn_rewards`, to a trainer that gives credit by turn. task: pays only where
    this grader scores 1, and each turn earns 0 elsewhere. Without it the process pays for failed tasks too:
    use it to begin with, then switch to the outcome."""

    def score(answer: str) -> Verdict:
        turns = transcript_of(answer).turns
        solved = 1.0 if task is None else task(answer).value
        if task is not None and solved < 1.0:
            failed = {"task": task.name, "scored": solved, "needed": 1.0}
            return 0.0, {TURN_REWARDS: [0.0] * len(turns), **failed}
        rewards = [unit_interval(float(of_turn(turn)), f"{name}, turn {at}") for at, turn in enumerate(turns)]
        return (math.fsum(rewards) / len(rewards) if rewards else 0.0), {TURN_REWARDS: rewards}

    return Grader(name, score)
