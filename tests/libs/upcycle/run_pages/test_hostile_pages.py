"""What episodes wrote stays text, and the page stays small."""

from dataclasses import replace
from typing import Any

import pytest
from tests.libs.upcycle.reporting.rows import episode, evaluation
from tests.libs.upcycle.run_pages.pages import evaluation_page
from tests.libs.upcycle.run_pages.reading_pages import read

from upcycle.reporting.report import report_of
from upcycle.run_pages.rendering import page_of
from upcycle.run_pages.texts import MAX_EPISODE_CHARS, Space, name, shown
from upcycle.run_pages.values import (
    GateVerdict,
    Header,
    Message,
    RunPage,
    ShownCall,
    ShownEpisode,
    ShownGrade,
    ShownSetting,
    ShownToken,
    ShownTurn,
    Step,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "--></title></pre></details><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;script&gt;",
    "\ud800 lone \udfff",
    "\x1b[2J\x00\x9b\u202egnp.exe",
)


def page_with(text: str) -> RunPage:
    """The text wherever an episode, a task, a tool, a grader or a person may have written it."""
    row = episode(
        text,
        0,
        0.0,
        family=text,
        first_tool_error=text,
        ended=text,
        policy_failure=text,
        subscores={text: 0.5},
    )
    row = replace(row, episode_id=text, trajectory_id=text)
    missing = replace(row, reward=None, failure=text, episode_id=f"{text} 2")
    turn = ShownTurn(text, (ShownCall(text, text, text, True, 0.1),), (text,), text, reasoning=text)
    tokens = ShownTurn(text, tokens=(ShownToken(text, -1.0),))
    whole = ShownEpisode(
        row,
        text,
        (text,),
        (Message(text, text),),
        (turn, tokens),
        text,
        (ShownGrade(0, text, 0.5, 1.0, text),),
        text,
        text,
        (text,),
    )
    return RunPage(
        header=Header(text, text, text, ((text, text),), (ShownSetting(text, text, text),), (text,)),
        episodes=(row, missing, replace(row, family="other", episode_id="3")),
        shown=(whole, replace(whole, row=missing)),
        report=report_of(evaluation(row, missing, replace(row, family="other"), group=1)),
        steps=(Step(1, 1, {text: 1.0, "loss": 1.0}), Step(2, 2, {"loss": 2.0})),
        verdicts=(GateVerdict(text, 1, 1, True, text, 0.5, 0.25, 0.1, 0.95, 9),),
        notices=(text,),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_what_was_written_is_text_wherever_it_stands(text: str) -> None:
    harmless, page = read(page_of(page_with("plain"))), read(page_of(page_with(text)))
    assert page.unclosed == []
    assert page.tags == harmless.tags
    assert [(tag, key) for tag, key, _ in page.attributes] == [
        (tag, key) for tag, key, _ in harmless.attributes
    ]
    assert all(value.startswith("#") and len(value) < 12 for value in page.values("href"))
    assert page.texts["script"] == harmless.texts["script"]
    assert page.texts["style"] == harmless.texts["style"]
    assert page.text.count(shown(text)) >= 8


@pytest.mark.parametrize("text", HOSTILE)
def test_no_control_character_and_no_half_character_is_on_the_page(text: str) -> None:
    html = page_of(page_with(text))
    assert html.encode().decode() == html
    controls = {one for one in html if ord(one) < 32 or 127 <= ord(one) < 160 or one in "\u202a\u202e\u2066"}
    assert controls <= {"\n", "\t"}


def test_long_text_makes_no_large_page() -> None:
    for text in ("a" * 10_000_000, "<" * 10_000_000, "&'\"" * 3_000_000):
        html = page_of(page_with(text))
        assert len(html) < 1_000_000
        assert "more characters]" in html


def test_an_episode_has_a_place_of_its_own_and_says_that_it_is_full() -> None:
    calls = tuple(ShownCall("read", "{}", "x" * 7_000) for _ in range(60))
    many = tuple(ShownTurn(f"turn {at}", calls) for at in range(3))
    first, *others = evaluation_page().shown
    html = page_of(evaluation_page(shown=(replace(first, turns=many), *others)))
    assert len(html) < MAX_EPISODE_CHARS + 150_000
    assert "upcycle trajectories show</code> has all of it" in html
    assert "and 10 more calls" in html
    assert "Why is checkout down?" in html.rpartition("has all of it")[2]


def test_tokens_take_their_place_too() -> None:
    tokens: Any = tuple(ShownToken("<", -1.0) for _ in range(100_000))
    first, *_ = evaluation_page().shown
    html = page_of(evaluation_page(shown=(replace(first, turns=(ShownTurn("", tokens=tokens),)),)))
    assert len(html) < MAX_EPISODE_CHARS * 1.2 + 100_000


def test_a_name_is_one_line_and_a_text_is_cut_with_a_note() -> None:
    assert name("a\n\tb  c\x1b[0m") == "a b c\ufffd[0m"
    assert name("x" * 500) == "x" * 159 + "…"
    assert shown("y" * 9_000).endswith("y\n[1,000 more characters]")
    assert shown("y" * 8_001) == "y" * 8_001
    space = Space(100)
    assert space.take("<" * 90, 90) == "&lt;" * 16 + "\n[74 more characters]"
    assert space.left < 20
