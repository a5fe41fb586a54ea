"""Graders of text, turns, screens and commands: hand-worked numbers, and answers that must earn nothing."""

import json
from pathlib import Path

import pytest

from upcycle import Answer
from upcycle.errors import DefinitionError, RewardInvalid
from upcycle.graders import (
    BashGrader,
    Grader,
    Rubric,
    SubScore,
    box_overlap,
    combine,
    combine_all,
    combine_any,
    contains,
    contains_any,
    exact_match,
    f1_score,
    grader,
    json_fields,
    length_normalized,
    normalize,
    numeric_match,
    step_penalty,
    turn_rewards,
    ui_action,
    well_formed_calls,
    when_solved,
)
from upcycle.rewards import evaluation_result, foreign_result
from upcycle.transcripts import ToolUse, Transcript, Turn

DUMP = "pool, deploy, disk, dns, certificate"
CYRILLIC = "p\u043e\u043el"  # looks like "pool"
NO_42 = [("41 42 43", 0.0), ("", 0.0), ("9" * 5000, 0.0), ("-42", 0.0)]
SPLIT = "po\u200bol"  # a space without width


def value(one: Grader, answer: str) -> float:
    return one(answer).value


def played(answer: str, *turns: tuple[str, int, int]) -> Answer:
    """An answer after turns of (text, calls that worked, calls that failed)."""
    made = []
    for text, worked, failed in turns:
        uses = [ToolUse("t", {}, "ok") for _ in range(worked)] + [
            ToolUse("t", {}, "no", is_error=True) for _ in range(failed)
        ]
        made.append(Turn(text, tuple(uses)))
    return Answer(answer, Transcript(tuple(made)))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("it is the pool", 1.0), ("POOL", 1.0), ("whirlpool", 0.0), ("", 0.0), (CYRILLIC, 0.0), (SPLIT, 0.0)],
)
def test_contains_finds_whole_words(answer: str, expected: float) -> None:
    assert value(contains("pool"), answer) == expected
    assert value(contains_any(["pool", "connection pool"]), answer) == expected


def test_a_dump_of_every_candidate_earns_nothing() -> None:
    others = ("deploy", "disk", "dns", "certificate")
    assert value(contains("pool", forbidden=others), DUMP) == 0.0
    assert value(contains_any(["pool"], forbidden=others), DUMP) == 0.0
    assert value(contains_any(["pool"], max_chars=20), DUMP) == 0.0
    assert value(exact_match("pool"), DUMP) == 0.0
    assert value(f1_score("pool"), DUMP) == pytest.approx(2 / 6)  # p 1/5, r 1
    with pytest.raises(DefinitionError):
        contains_any([])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The cat sat.", 1.0),
        ("cat", 2 / 3),  # p 1, r 1/2
        ("the dog sat down", 2 / 5),  # p 1/3, r 1/2
        ("cat " * 98, 2 / 100),  # a word counts as often as it is expected
        ("a the an", 0.0),
        ("", 0.0),
        ("c\u0430t s\u0430t", 0.0),
    ],
)
def test_f1_is_the_overlap_of_words(answer: str, expected: float) -> None:
    assert value(f1_score("the cat sat"), answer) == pytest.approx(expected)
    with pytest.raises(DefinitionError, match="no word"):
        f1_score("the ...")


def test_normalize_leaves_the_words() -> None:
    assert normalize("  The \ufb01rst, A-team's\nanswer! ") == "first team s answer"
    assert normalize("po\u200bol") == "po ol"
    assert normalize(CYRILLIC) != normalize("pool")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("42", 1.0), ("it is 42.5", 1.0), ("42.51", 0.0), ("nan", 0.0), ("inf", 0.0), ("1e999", 0.0), *NO_42],
)
def test_numeric_match_takes_one_number(answer: str, expected: float) -> None:
    assert value(numeric_match(42, tolerance=0.5), answer) == expected
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(DefinitionError, match="tolerance"):
            numeric_match(42, tolerance=bad)


@pytest.mark.parametrize("answer", ["[" * 100_000, '{"n": NaN}', '{"n": ' + "9" * 5000 + "}", "null", "1"])
def test_json_fields_refuses_hostile_json(answer: str) -> None:
    assert value(json_fields({"n": 3}), answer) == 0.0


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7),
        ((0, 0, 2, 2), (0, 0, 2, 1), 1 / 2),
        ((0, 0, 2, 2), (2, 0, 4, 2), 0.0),
        ((0, 0, 2, 2), (2, 2, 0, 0), 0.0),
        ((0, 0, 2, 2), (0, 0, 0, 0), 0.0),
        ((0, 0, 2, 2), (0, 0, 1e308, 1e308), 0.0),
        ((0, 0, 2, 2), (float("nan"), 0, 2, 2), 0.0),
        ((0, 0, 2, 2), (0, 0, 2), 0.0),
    ],
)
def test_box_overlap(one: tuple[float, ...], other: tuple[float, ...], expected: float) -> None:
    assert box_overlap(one, other) == pytest.approx(expected)
    assert box_overlap(other, one) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"action": "click", "box": [0, 0, 2, 2]}, 1.0),
        ({"action": "click", "box": [0, 0, 2, 1]}, 0.65),  # 0.3 + 0.7 / 2
        ({"action": "click", "box": [5, 5, 6, 6]}, 0.3),
        ({"action": "click", "box": [-1e6, -1e6, 1e6, 1e6]}, 0.3),
        ({"action": "click"}, 0.3),
        ({"action": "type", "box": [0, 0, 2, 2]}, 0.0),
        ({"action": ["click", "type"], "box": [0, 0, 2, 2]}, 0.0),
        ({"box": [0, 0, 2, 2]}, 0.0),
        ([{"action": "click", "box": [0, 0, 2, 2]}], 0.0),
    ],
)
def test_a_ui_action_pays_for_kind_and_place(row: object, expected: float) -> None:
    answer = json.dumps(row)
    assert value(ui_action("click", (0, 0, 2, 2)), answer) == pytest.approx(expected, abs=1e-9)
    assert value(ui_action("click", (0, 0, 2, 2)), "") == 0.0
    with pytest.raises(DefinitionError):
        ui_action("click", (2, 2, 0, 0))


def test_form_never_pays_where_the_task_failed() -> None:
    task = exact_match("pool")
    rubric = Rubric([task.weighing(0.9), when_solved(well_formed_calls(), task).weighing(0.1)])
    tidy = (("looking", 3, 0),)
    assert rubric(played("pool", *tidy)).score == 1.0
    assert rubric(played("pool", ("", 1, 1))).score == pytest.approx(0.95)
    assert rubric(played("disk", *tidy)).score == 0.0
    assert rubric(played("", *tidy * 50)).score == 0.0
    assert rubric(played("pool")).score == pytest.approx(0.9)
    with pytest.raises(DefinitionError):
        when_solved(task, task, at=0.0)


def test_steps_cost_and_length_does_not_pay() -> None:
    task = exact_match("pool")
    thrifty = step_penalty(task, free=2, each=0.25)
    scores = [value(thrifty, played("pool", ("", calls, 0))) for calls in (0, 2, 3, 5, 6, 1000)]
    assert scores == pytest.approx([1.0, 1.0, 0.75, 0.25, 0.0, 0.0])
    assert value(thrifty, played("disk", ("", 0, 0))) == 0.0
    brief = length_normalized(task, most_chars=100)
    assert value(brief, "pool") == 1.0
    assert value(brief, played("pool", ("x" * 300, 0, 0), ("x" * 100, 0, 0))) == pytest.approx(0.25)
    assert value(brief, "disk") == 0.0
    for free, each in ((-1, 0.1), (0, 0.0), (0, float("nan"))):
        with pytest.raises(DefinitionError):
            step_penalty(task, free=free, each=each)


def test_turn_rewards_are_kept_and_more_turns_do_not_earn_more() -> None:
    called = turn_rewards(lambda turn: bool(turn.tool_calls))
    verdict = called(played("x", ("", 1, 0), ("talk", 0, 0), ("", 2, 0), ("", 1, 0)))
    assert (verdict.value, verdict.info["turn_rewards"]) == (0.75, [1.0, 0.0, 1.0, 1.0])
    assert value(called, played("x", *[("", 1, 0)] * 200)) == 1.0
    assert value(called, "x") == 0.0
    gated = turn_rewards(lambda turn: True, task=exact_match("pool"))
    assert gated(played("disk", ("", 1, 0), ("", 0, 0))).info["turn_rewards"] == [0.0, 0.0]
    assert value(gated, played("disk", ("", 1, 0))) == 0.0
    assert value(gated, played("pool", ("", 1, 0))) == 1.0
    with pytest.raises(RewardInvalid):
        turn_rewards(lambda turn: float("nan"))(played("x", ("", 1, 0)))


def test_a_result_says_what_each_turn_earns_by_the_graders_that_say_it() -> None:
    calls = turn_rewards(lambda turn: bool(turn.tool_calls), name="calls")
    brief = turn_rewards(lambda turn: len(turn.text) < 3, name="brief")
    episode = played("pool", ("", 1, 0), ("talk", 1, 0), ("ok", 0, 0))
    rubric = Rubric([exact_match("pool"), calls.weighing(3.0), brief.weighing(1.0)])
    assert rubric(episode).turn_rewards == (1.0, 0.75, 0.25)  # of weights 3 and 1
    assert Rubric([exact_match("pool"), brief.shadow()])(episode).turn_rewards == ()
    gated = Rubric([exact_match("disk").weighing(1.0, required=True), calls])(episode)
    assert (gated.score, gated.turn_rewards) == (0.0, (0.0, 0.0, 0.0))
    assert combine(calls(episode)).turn_rewards == (1.0, 1.0, 0.0)
    assert Rubric([exact_match("pool")])(episode).turn_rewards == ()
    other = SubScore("other", 1.0, info={"turn_rewards": [1.0]})
    with pytest.raises(DefinitionError, match=r"graders reward \[1, 3\] turns"):
        combine(calls(episode), other)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([0.5, 1.5], r"turn_rewards\[1\] is 1.5, outside"),
        ([float("nan")], r"turn_rewards\[0\] is nan"),
        ("0.5", "turn_rewards is '0.5', not a list"),
        ({"0": 1.0}, "not a list"),
    ],
)
def test_turn_rewards_that_are_none_are_no_reward(given: object, says: str) -> None:
    with pytest.raises(RewardInvalid, match=says):
        evaluation_result({"score": 1.0, "info": {"turn_rewards": given}})
    foreign = foreign_result({"score": 1.0, "info": {"turn_rewards": given}})
    assert foreign.turn_rewards == ()  # what others write there is theirs


def test_a_shadow_grader_changes_nothing_even_where_it_raises() -> None:
    def raises(answer: str) -> float:
        raise KeyError(answer)

    alone = Rubric([exact_match("pool")])
    watched = Rubric(
        [exact_match("pool"), grader(raises).shadow(), grader(lambda _: 7.0, name="seven").shadow()]
    )
    for answer in ("pool", "disk", ""):
        assert watched(answer).score == alone(answer).score
        assert watched(answer).success is alone(answer).success
    shadows = watched("pool").subscores[1:]
    assert [(one.name, one.weight, one.value) for one in shadows] == [
        ("shadow_raises", 0.0, 0.0),
        ("shadow_seven", 0.0, 0.0),
    ]
    assert shadows[0].info == {"raised": "KeyError: 'pool'"}


def test_scores_that_are_there_are_combined() -> None:
    right, half, wrong = SubScore("r", 1.0, 3.0), SubScore("h", 0.5), SubScore("w", 0.0)
    result = combine(right, half, wrong)
    assert result.score == pytest.approx(3.5 / 5)
    assert result.success is False
    assert combine(right).success is True
    assert (combine_any(half, wrong).value, combine_all(half, right).value) == (0.5, 0.5)
    assert combine_all(half, wrong, name="both").children == (half, wrong)
    bad: list[tuple[SubScore, ...]] = [(), (right, right), (SubScore("z", 1.0, 0.0),)]
    for refused in bad:
        with pytest.raises(DefinitionError):
            combine(*refused)


def test_a_command_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (tmp_path / "fact.txt").write_text("pool")
    test = BashGrader('test "$(cat)" = "$(cat fact.txt)"', cwd=tmp_path)
    assert [value(test, answer) for answer in ("pool", "disk", "", "$(cat fact.txt)", "x" * 10**6)] == [
        1,
        0,
        0,
        0,
        0,
    ]
    assert BashGrader("env")("x").info["output"].count("secret") == 0
    assert value(BashGrader("no-such-program"), "x") == 0.0
    assert value(BashGrader("kill -9 $$"), "x") == 0.0
    slow = BashGrader("sleep 60 & sleep 60", timeout_s=0.5)("x")
    assert (slow.value, slow.info["status"]) == (0.0, "not over within 0.5 s")
    assert len(BashGrader("yes | head -c 1000000")("x").info["output"]) == 2000
    assert BashGrader("true").weighing(0.5, required=True)("x").weight == 0.5
    with pytest.raises(DefinitionError):
        BashGrader("  ")
