"""A grade that waits for a judge: who gets its question, what a repeat gets, and what ends it. Real
processes; the test is the grader."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet
from tests.support.judges import nonce_in

from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    EpisodeFault,
    Grade,
    JudgeAnswer,
    JudgeAsked,
    Opened,
    PythonEnvironment,
    UnknownLease,
)
from scenario_runner.usecases.judge_questions import JudgeQuestions
from upcycle.errors import Unavailable
from upcycle.judge_calls import MAX_CALLS, MAX_QUESTION_CHARS, JudgeQuestion, JudgeReply

JUDGED = PythonEnvironment("judged", str(ENVIRONMENTS / "judged.py"))


class Asking:
    """Grades one episode as a grader that asks judges."""

    def __init__(self, fleet: Fleet, opened: Opened, body: Any) -> None:
        self._fleet = fleet
        self.opened = opened
        self.body = body

    async def step(self, answer: JudgeAnswer | None = None, within_s: float = 10.0) -> Grade | JudgeAsked:
        return await self._fleet.leases.grade_judged(
            self.opened.lease_id, self.body, answer, answers_within_s=within_s
        )

    async def asked(self, answer: JudgeAnswer | None = None) -> JudgeAsked:
        outcome = await self.step(answer)
        assert isinstance(outcome, JudgeAsked)
        return outcome

    async def graded(self, answer: JudgeAnswer | None = None) -> Grade:
        outcome = await self.step(answer)
        assert isinstance(outcome, Grade)
        return outcome


def said(asked: JudgeAsked, *met: bool) -> JudgeAnswer:
    """A verdict on each criterion."""
    rows = ", ".join(
        f'{{"id": {number}, "met": {"true" if one else "false"}, "reason": "so"}}'
        for number, one in enumerate(met, 1)
    )
    text = f'{{"nonce": "{nonce_in(asked.question.system)}", "criteria": [{rows}]}}'
    return JudgeAnswer(asked.question_id, JudgeReply(text, "wise-1", 70, 7))


async def asking(
    fleet: Fleet, scenario: str = "essay", args: str = "{}", answer: str = "the memory"
) -> Asking:
    """An episode that was played."""
    opened = await fleet.open(scenario, args, source=JUDGED)
    return Asking(fleet, opened, await fleet.stored(opened, answer))


@pytest.fixture
async def episode(fleet: Fleet) -> Asking:
    """One with the answer `the memory`."""
    return await asking(fleet)


async def test_a_grade_asks_waits_and_ends_with_the_verdict(episode: Asking) -> None:
    asked = await episode.asked()
    assert "the memory" in asked.question.user
    assert asked.question.model == ""
    grade = await episode.graded(said(asked, True, False))
    assert grade.reward == 1.0
    (tree,) = grade.subscores
    assert tree["info"] == {"model": "wise-1", "prompt_tokens": 70, "completion_tokens": 7}
    assert [child["info"]["criterion"] for child in tree["children"]] == ["names the memory", "insults"]
    assert [child["info"]["reason"] for child in tree["children"]] == ["so", "so"]


async def test_a_judge_may_say_no(episode: Asking) -> None:
    assert (await episode.graded(said(await episode.asked(), True, True))).reward == 0.0


async def test_a_repeat_gets_the_same_question_and_then_the_same_grade(episode: Asking) -> None:
    """As after the death of a grader at any moment."""
    asked = await episode.asked()
    assert await episode.asked() == asked
    first = said(asked, True, False)
    assert (await episode.graded(first)).reward == 1.0
    assert (await episode.graded()).reward == 1.0
    assert (await episode.graded(first)).reward == 1.0
    assert (await episode.graded(said(asked, False, True))).reward == 1.0


async def test_of_two_graders_the_first_answer_counts(episode: Asking) -> None:
    asked = await episode.asked()
    yes, no = said(asked, True, False), said(asked, False, False)
    grades = await asyncio.gather(episode.graded(yes), episode.graded(no), episode.graded())
    assert [grade.reward for grade in grades] == [1.0, 1.0, 1.0]


async def test_an_answer_to_a_question_that_does_not_wait_is_left(episode: Asking) -> None:
    asked = await episode.asked()
    stale = JudgeAnswer("question-9", JudgeReply("{}"))
    assert await episode.asked(stale) == asked


async def test_an_unreadable_verdict_is_asked_again_and_then_missing(episode: Asking) -> None:
    asked = await episode.asked()
    again = await episode.asked(JudgeAnswer(asked.question_id, JudgeReply("I like it", "wise-1")))
    assert again.question_id != asked.question_id
    with pytest.raises(EpisodeFault, match="wise-1 gave no verdict on each of 2 criteria") as raised:
        await episode.step(JudgeAnswer(again.question_id, JudgeReply("{}", "wise-1")))
    assert raised.value.failure_kind == "external_failure"


async def test_a_judge_that_gave_no_answer_makes_the_episode_missing(fleet: Fleet, episode: Asking) -> None:
    asked = await episode.asked()
    with pytest.raises(EpisodeFault, match="the judge did not answer: wise-1 is away") as raised:
        await episode.step(JudgeAnswer(asked.question_id, JudgeReply(""), failure="wise-1 is away"))
    assert raised.value.failure_kind == "external_failure"
    assert fleet.leases.num_alive == 0
    other = await asking(fleet, "forgiving")
    away = JudgeAnswer((await other.asked()).question_id, JudgeReply(""), failure="wise-1 is away")
    assert (await other.graded(away)).reward == 0.25


async def test_a_judge_that_nothing_asks_breaks_the_environment_and_is_no_fault_of_the_answer(
    fleet: Fleet,
) -> None:
    """A fresh instance would grade an empty answer: it asks nothing."""
    episode = await asking(fleet, args='{"model": "gateway:none"}')
    asked = await episode.asked()
    assert asked.question.model == "gateway:none"
    refusal = JudgeAnswer(asked.question_id, JudgeReply(""), refusal="no judge 'gateway:none' here")
    with pytest.raises(EnvironmentBroken, match="no judge 'gateway:none' here"):
        await episode.step(refusal)


async def test_a_grader_without_judges_learns_what_to_set(fleet: Fleet) -> None:
    for answer in ("x", ""):
        with pytest.raises(EnvironmentBroken, match="judge 'judge': nothing here asks a model") as raised:
            await fleet.grade(await fleet.open("essay", source=JUDGED), answer)
        assert "REWARD_GRADER_JUDGE_URL" in str(raised.value)


async def test_a_grader_without_judges_leaves_a_grade_that_waits_for_one(
    fleet: Fleet, episode: Asking
) -> None:
    """One of the version before, which got the record again."""
    asked = await episode.asked()
    with pytest.raises(Unavailable, match="a reward grader that asks judges"):
        await fleet.leases.grade(episode.opened.lease_id, episode.body)
    assert (await episode.graded(said(asked, True, False))).reward == 1.0
    assert (await fleet.leases.grade(episode.opened.lease_id, episode.body)).reward == 1.0


async def test_the_lease_lasts_as_long_as_the_judge_may_take(fleet: Fleet, episode: Asking) -> None:
    await episode.step(within_s=600)
    fleet.clock.now += timedelta(seconds=630)  # a lease lasts 60 s
    assert await fleet.leases.expire() == 0
    asked = await episode.asked()
    assert (await episode.graded(said(asked, True, False))).reward == 1.0


async def test_a_grade_whose_grader_never_comes_back_ends_with_its_lease(fleet: Fleet) -> None:
    """And is missing: a fresh instance would grade an empty answer, and blame the policy."""
    episode = await asking(fleet)
    await episode.asked()
    waiting = fleet.leases._leases[episode.opened.lease_id].grading
    assert waiting is not None
    fleet.clock.now += timedelta(seconds=3600)
    assert await fleet.leases.expire() == 1
    with pytest.raises(EnvironmentLost, match="ended while its grade waited for a judge"):
        await waiting
    with pytest.raises(UnknownLease):
        await episode.step()
    assert fleet.leases.num_alive == 0


async def test_a_grade_asks_an_operators_judges_so_much_and_no_more(fleet: Fleet) -> None:
    """The environment keeps the same limits; the fleet does not trust it."""
    episode = await asking(fleet, args=f'{{"times": {MAX_CALLS + 1}}}')
    asked, outcome = 0, await episode.step()
    while isinstance(outcome, JudgeAsked):
        asked, outcome = asked + 1, await episode.step(said(outcome, True, False))
    assert asked == MAX_CALLS
    assert outcome.failure is not None
    assert f"question {MAX_CALLS + 1}" in str(outcome.failure)
    with pytest.raises(EpisodeFault, match="limits are 64 questions of 400000 characters"):
        await JudgeQuestions().ask(JudgeQuestion("", "s", "u" * MAX_QUESTION_CHARS))


async def test_what_breaks_after_the_judge_spoke_is_blamed_as_ever(fleet: Fleet) -> None:
    episode = await asking(fleet, "breaks_on_praise")
    grade = await episode.graded(said(await episode.asked(), True))
    assert (grade.reward, grade.failure is not None and grade.failure.failure_kind) == (0.0, "answer_error")
    episode = await asking(fleet, "asks_of_nothing")
    second = await episode.asked(said(await episode.asked(), True))  # of the fresh instance
    assert "nothing" in second.question.user
    grade = await episode.graded(said(second, True))
    assert grade.failure is not None
    assert grade.failure.failure_kind == "answer_error"


async def test_an_answer_that_comes_as_the_lease_ends_changes_nothing() -> None:
    """Between the end of the environment and the grade that learns of it."""
    questions = JudgeQuestions()
    grading = asyncio.ensure_future(questions.ask(JudgeQuestion("", "s", "u")))
    asked = await questions.asked(grading)
    assert asked is not None
    questions.close()
    questions.answer(JudgeAnswer(asked.question_id, JudgeReply("{}")))
    with pytest.raises(EnvironmentLost):
        await grading
