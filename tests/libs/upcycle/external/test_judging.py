"""Judges of an evaluation in this process: asked outside the episode, with a key that is sent to one
server."""

from pathlib import Path

import pytest
from tests.support.judges import judging
from tests.support.model_servers import KEY, MODEL, Asked, Said, Turn, openai_shaped, serving

from upcycle.cli.main import run
from upcycle.errors import UpcycleError
from upcycle.external.judging import Judges
from upcycle.judge_calls import JudgeQuestion
from upcycle.platform import PEERS

JUDGED = """
import os
from upcycle import Environment, Rubric
from upcycle.graders import LLMJudgeGrader

env = Environment("essays")

@env.scenario("essay")
async def essay(topic: str):
    answer = yield f"Write about {topic}."
    assert not [name for name in os.environ if name.endswith("_KEY")]
    yield await Rubric([LLMJudgeGrader(["is about tea", ("insults the reader", -1.0)])]).judged(answer)

from upcycle import Taskset
TASKS = Taskset("essays", [essay.task(slug="tea", topic="tea")], "unassigned")
"""
QUESTION = JudgeQuestion("", "You grade.", "What of this?")


def test_an_evaluation_asks_the_judge_that_is_set(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "judged.py").write_text(JUDGED)
    (shop / "turns.jsonl").write_text('"Tea is hot."\n')
    with serving(judging(True, False)) as judge:
        monkeypatch.setenv("UPCYCLE_JUDGE", f"openai:{judge.url}/v1#{MODEL}")
        monkeypatch.setenv("UPCYCLE_JUDGE_KEY", KEY)
        with serving(lambda asked: openai_shaped(lambda results: Turn("Tea is hot."))(asked)) as agent:
            monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
            named = f"openai:{agent.url}/v1#{MODEL}"
            assert run(["eval", "judged.py", "--agent", named, "--trajectories", "t.jsonl"]) == 0
        assert "success 100.0%" in capsys.readouterr().out
        assert run(["play", "judged.py", "--script", "turns.jsonl"]) == 0
        played = capsys.readouterr().out
    assert "is about tea" in played
    (request, _) = judge.turns
    assert "Tea is hot." in request.body["messages"][1]["content"]
    assert KEY not in Path("t.jsonl").read_text()


def test_without_a_judge_the_episode_is_missing_and_says_what_to_set(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UPCYCLE_JUDGE", raising=False)
    (shop / "judged.py").write_text(JUDGED)
    (shop / "turns.jsonl").write_text('"Tea is hot."\n')
    assert run(["play", "judged.py", "--script", "turns.jsonl"]) == 1
    said = capsys.readouterr().out
    assert "external_failure" in said
    assert "a judge is asked, and none is named; set UPCYCLE_JUDGE" in said


async def test_a_key_goes_to_the_server_that_the_user_named_and_to_no_other() -> None:
    keys: list[str] = []

    def answer(asked: Asked) -> Said:
        keys.append(asked.headers.get("authorization", ""))
        return Said(200, {"choices": [{"message": {"content": "fine"}}], "usage": {"prompt_tokens": 3}})

    with serving(answer) as mine, serving(answer) as theirs:
        env = {
            "UPCYCLE_JUDGE": f"openai:{mine.url}/v1#{MODEL}",
            "UPCYCLE_JUDGE_KEY": KEY,
            "UPCYCLE_AGENT_KEY": "agents",
            "OPENAI_API_KEY": "openais",
        }
        judges = Judges(environ=env, pauses_s=())
        for model in (
            "",
            f"openai:{mine.url}/v1#other",
            f"openai:{theirs.url}/v1#{MODEL}",
            f"{theirs.url}/v1#{MODEL}",
        ):
            reply = await judges.ask(JudgeQuestion(model, "s", "u"))
            assert (reply.text, reply.prompt_tokens) == ("fine", 3)
        await judges.close()
    assert keys == [f"Bearer {KEY}", f"Bearer {KEY}", "", ""]


async def test_a_judge_may_be_a_model_of_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(openai_shaped(lambda results: Turn("fine"))) as gateway:
        for peer in PEERS:
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", gateway.url.removeprefix("http://"))
        monkeypatch.setenv("UPCYCLE_API_KEY", KEY)
        judges = Judges(pauses_s=())
        assert (await judges.ask(JudgeQuestion(f"gateway:{MODEL}", "s", "u"))).model == f"gateway#{MODEL}"
        with pytest.raises(UpcycleError, match="names no model of the gateway"):
            await judges.ask(JudgeQuestion("gateway:", "s", "u"))
        await judges.close()
