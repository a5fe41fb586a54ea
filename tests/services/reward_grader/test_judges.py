"""The grader's judges: which one is asked, how long, and what its server may answer. Real HTTP."""

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from pydantic import ValidationError
from tests.support.judges import completion
from tests.support.model_servers import KEY, Asked, Said, serving

from reward_grader.adapters.judges import MAX_REPLY_BYTES, JudgeServers
from reward_grader.app import build_judges
from reward_grader.domain import Judge, JudgeLimits
from reward_grader.settings import RewardGraderSettings
from upcycle.errors import InfrastructureError, JudgeRefused, Unavailable
from upcycle.judge_calls import JudgeQuestion

QUESTION = JudgeQuestion("", "You grade.", "What of this?")
FINE = completion("fine")


@asynccontextmanager
async def judged_by(
    answer: Callable[[Asked], Said], *, answer_s: float = 60.0, key: str = KEY
) -> AsyncIterator[tuple[JudgeServers, list[Asked]]]:
    """A default judge behind a server that answers so."""
    with serving(answer) as server:
        judge = Judge("", f"{server.url}/v1", "wise-1", key)
        judges = JudgeServers([judge], JudgeLimits(answer_s, 300.0, 99), pauses_s=(0.01, 0.01))
        yield judges, server.asked
        await judges.stop()


async def test_a_question_is_one_request_without_chance() -> None:
    async with judged_by(lambda asked: FINE) as (judges, asked):
        reply = await judges.ask(QUESTION)
    assert (reply.text, reply.model) == ("fine", "wise-1")
    assert (reply.prompt_tokens, reply.completion_tokens) == (100, 10)
    (request,) = asked
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "wise-1",
        "messages": [
            {"role": "system", "content": "You grade."},
            {"role": "user", "content": "What of this?"},
        ],
        "temperature": 0.0,
        "max_tokens": 99,
    }


async def test_a_server_may_want_its_own_temperature_and_count_of_tokens() -> None:
    def picky(asked: Asked) -> Said:
        if "temperature" in asked.body:
            return Said(400, "Unsupported value: 'temperature' does not support 0 with this model.")
        if "max_tokens" in asked.body:
            return Said(400, "Use 'max_completion_tokens' instead.")
        return FINE

    async with judged_by(picky) as (judges, asked):
        for _ in range(2):
            assert (await judges.ask(QUESTION)).text == "fine"
    assert len(asked) == 4  # what it wants is learned once


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_busy_judge_is_asked_again_and_then_later(status: int) -> None:
    said = [Said(status, "busy"), FINE, *[Said(status, f"busy with {KEY}")] * 3]
    async with judged_by(lambda asked: said.pop(0)) as (judges, asked):
        assert (await judges.ask(QUESTION)).text == "fine"
        with pytest.raises(Unavailable, match=f"which answers {status}: busy") as raised:
            await judges.ask(QUESTION)
        assert len(asked) == 5
        assert KEY not in str(raised.value)


@pytest.mark.parametrize("status", [301, 401, 403, 404])
async def test_what_an_operator_can_mend_is_waited_for(status: int) -> None:
    async with judged_by(lambda asked: Said(status, {"key": KEY}, {"Location": "/v1/chat"})) as (
        judges,
        asked,
    ):
        with pytest.raises(Unavailable, match=f"which answers {status}") as raised:
            await judges.ask(QUESTION)
        assert KEY not in str(raised.value)
        assert len(asked) == 1  # no redirect is followed: the key is for this server


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_question_that_is_refused_is_not_asked_again(status: int) -> None:
    async with judged_by(lambda asked: Said(status, f"too long, {KEY}")) as (judges, asked):
        with pytest.raises(InfrastructureError, match=rf"refused the question \({status}\)") as raised:
            await judges.ask(QUESTION)
        assert KEY not in str(raised.value)
        assert len(asked) == 1


@pytest.mark.parametrize("body", ["<html>", "[" * 100_000, {"choices": []}, None, [1]])
async def test_what_is_no_completion_is_asked_again_and_then_no_verdict(body: object) -> None:
    async with judged_by(lambda asked: Said(200, body)) as (judges, asked):
        with pytest.raises(InfrastructureError, match="wise-1 sent no completion"):
            await judges.ask(QUESTION)
        assert len(asked) == 3


async def test_a_reply_has_so_many_bytes_and_no_more() -> None:
    large = json.dumps(completion("x" * MAX_REPLY_BYTES).body)
    async with judged_by(lambda asked: Said(200, large)) as (judges, _):
        with pytest.raises(InfrastructureError, match=f"sent more than {MAX_REPLY_BYTES} bytes"):
            await judges.ask(QUESTION)


async def test_half_a_character_and_an_echo_of_the_key_go_no_further() -> None:
    said = json.dumps({"choices": [{"message": {"content": f"\ud83d {KEY}"}}]})
    async with judged_by(lambda asked: Said(200, said)) as (judges, _):
        reply = await judges.ask(QUESTION)
    assert reply.text == "? [key]"


async def test_a_judge_that_hangs_or_is_away_is_asked_later() -> None:
    blocked = threading.Event()

    def hang(asked: Asked) -> Said:
        blocked.wait(60)
        return FINE

    async with judged_by(hang, answer_s=0.5) as (judges, _):
        try:
            with pytest.raises(Unavailable, match=r"judge wise-1"):
                await judges.ask(QUESTION)
        finally:
            blocked.set()
    away = JudgeServers([Judge("", "http://127.0.0.1:1/v1", "wise-1", KEY)], JudgeLimits())
    with pytest.raises(Unavailable, match="which does not answer"):
        await away.ask(QUESTION)
    await away.stop()


async def test_an_episode_names_a_judge_and_no_address() -> None:
    with serving(lambda asked: FINE) as mine, serving(lambda asked: FINE) as theirs:
        settings = RewardGraderSettings(
            judge_url=f"{mine.url}/v1/",
            judge_model="wise-1",
            judge_key=KEY,
            judges=[{"name": "gateway:kind", "url": f"{mine.url}/v1", "model": "kind-2"}],
        )
        judges = build_judges(settings)
        for name, shown in [
            ("", "wise-1"),
            (f"openai:{mine.url}/v1#wise-1", "wise-1"),
            ("gateway:kind", "kind-2 (gateway:kind)"),
        ]:
            assert (await judges.ask(JudgeQuestion(name, "s", "u"))).model == shown
        for unknown in (f"openai:{theirs.url}/v1#wise-1", f"openai:{mine.url}/v1#other", "gateway:wise-1"):
            with pytest.raises(JudgeRefused, match=r"is none that this platform asks.*'gateway:kind'"):
                await judges.ask(JudgeQuestion(unknown, "s", "u"))
        await judges.stop()
    assert [one.body["model"] for one in mine.asked] == ["wise-1", "wise-1", "kind-2"]
    assert "authorization" not in mine.asked[2].headers  # the key is the default judge's
    assert theirs.asked == []


async def test_without_a_default_judge_it_is_said_what_to_set() -> None:
    judges = build_judges(
        RewardGraderSettings(judges=[{"name": "gateway:kind", "url": "http://h/v1", "model": "kind"}])
    )
    with pytest.raises(JudgeRefused, match="set REWARD_GRADER_JUDGE_URL and REWARD_GRADER_JUDGE_MODEL"):
        await judges.ask(QUESTION)
    assert not build_judges(RewardGraderSettings())


EXTRA = {"path": "my.graders:polite", "weight": 1.0}
KIND = {"name": "gateway:kind", "url": "http://h/v1", "model": "kind"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"judge_url": "http://h/v1"}, "JUDGE_URL is set and REWARD_GRADER_JUDGE_MODEL is not"),
        ({"judge_model": "wise"}, "JUDGE_MODEL is set and REWARD_GRADER_JUDGE_URL is not"),
        ({"judge_key": KEY}, "JUDGE_KEY is set and REWARD_GRADER_JUDGE_URL is not"),
        ({"judge_url": "h:80/v1", "judge_model": "wise"}, r"must be the http\(s\) address"),
        ({"judge_url": "http://me:secret@h/v1", "judge_model": "wise"}, "must have no credentials"),
        ({"judges": [KIND, KIND]}, "names 'gateway:kind' twice"),
        ({"judges": [{**KIND, "name": "kind"}]}, "should match pattern"),
        ({"judges": [{**KIND, "url": ""}]}, "at least 1 character"),
        ({"judges": [{**KIND, "secret": 1}]}, "Extra inputs"),
        (
            {"judges": [KIND], "judge_timeout_s": 211.0},  # 900 - 600 of asking - 30 - 60 of the grade = 210
            r"GRADE_TIMEOUT_S \(60\) \+ REWARD_GRADER_JUDGE_TIMEOUT_S \(211\) is 271 s.* has 270 s",
        ),
        ({"judges": [KIND], "grade_timeout_s": 151.0}, r"GRADE_TIMEOUT_S \(151\).* lower one of them"),
        (
            {"judges": [KIND], "extra_graders": [EXTRA], "judge_timeout_s": 181.0},
            r"JUDGE_TIMEOUT_S \(181\) \+ REWARD_GRADER_EXTRA_TIMEOUT_S \(30\) is 271 s",
        ),
        ({"grade_timeout_s": 871.0}, r"GRADE_TIMEOUT_S \(871\) is 871 s.* has 870 s"),
    ],
)
def test_judges_that_cannot_be_asked_are_refused_at_the_start(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as raised:
        RewardGraderSettings(**given)  # type: ignore[arg-type]
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        {"judges": [KIND], "judge_timeout_s": 210.0},
        {"judges": [KIND], "extra_graders": [EXTRA], "judge_timeout_s": 180.0},
        {"judge_timeout_s": 800.0, "grade_timeout_s": 870.0},  # no judge is asked
    ],
)
def test_the_longest_delivery_that_has_time_is_taken(given: dict[str, object]) -> None:
    RewardGraderSettings(**given)  # type: ignore[arg-type]
