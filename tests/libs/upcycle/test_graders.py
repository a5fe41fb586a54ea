"""Graders: gold passes; near misses, empty, hostile and hedging answers fail."""

from typing import Any

import pytest

from upcycle.errors import DefinitionError, RewardInvalid
from upcycle.graders import Grader, Rubric, contains_all, exact_match, grader, json_fields, numeric_close


def value(one: Grader, answer: str) -> float:
    return one(answer).value


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("orders-db", 1.0),
        ("  Orders-DB\n", 1.0),
        ("orders-db.", 0.0),
        ("orders", 0.0),
        ("it is orders-db", 0.0),
        ("orders-db users-db", 0.0),
        ("", 0.0),
    ],
)
def test_exact_match_pays_for_the_whole_answer_only(answer: str, expected: float) -> None:
    assert value(exact_match("orders-db"), answer) == expected


def test_exact_match_can_mind_the_case() -> None:
    assert value(exact_match("Paris", case_sensitive=True), "paris") == 0.0
    with pytest.raises(DefinitionError, match="empty"):
        exact_match("  ")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("checkout has an exhausted Connection  Pool", 1.0),
        ("checkout", 0.5),
        ("the pool of checkout-v2 is fine", 0.0),
        ("precheckout connection pools", 0.0),
        ("", 0.0),
        ("checkout: connection pool, or a bad deploy, or the disk", 0.0),
        ("checkout connection pool " * 20, 0.0),
    ],
)
def test_contains_all_does_not_pay_for_naming_everything(answer: str, expected: float) -> None:
    one = contains_all(["checkout", "connection pool"], forbidden=["bad deploy", "disk"], max_chars=200)
    assert value(one, answer) == expected


def test_contains_all_says_what_is_missing() -> None:
    assert contains_all(["a", "b"])("only a").info == {"missing": ["b"]}
    for parts in ("ab", [], [""]):
        with pytest.raises(DefinitionError):
            contains_all(parts)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", 1.0),
        ("The sum is 42.", 1.0),
        ("42, yes 42", 1.0),
        ("42.0001", 0.0),
        ("41 or 42", 0.0),
        ("forty-two", 0.0),
        ("", 0.0),
        ("nan", 0.0),
        ("1e999", 0.0),
    ],
)
def test_numeric_close_takes_one_number(answer: str, expected: float) -> None:
    assert value(numeric_close(42), answer) == expected


def test_numeric_close_reads_thousands_and_tolerances() -> None:
    assert value(numeric_close(1234.5), "about 1,234.5 requests") == 1.0
    assert value(numeric_close(100, rel_tol=0.05), "104") == 1.0
    assert value(numeric_close(100, rel_tol=0.05), "106") == 0.0
    assert value(numeric_close(0.0, abs_tol=0.1), "-0.05") == 1.0
    with pytest.raises(DefinitionError, match="not finite"):
        numeric_close(float("nan"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"service": "db", "count": 3}', 1.0),
        ('```json\n{"service": "DB", "count": 3}\n```', 1.0),
        ('{"service": "db"}', 0.5),
        ('{"service": "db", "count": true}', 0.5),
        ('{"service": ["db", "web"], "count": "3"}', 0.0),
        ('[{"service": "db", "count": 3}]', 0.0),
        ('service: "db", count: 3', 0.0),
        ("", 0.0),
        ("null", 0.0),
    ],
)
def test_json_fields_pays_the_share_of_fields_that_are_right(answer: str, expected: float) -> None:
    assert value(json_fields({"service": "db", "count": 3}), answer) == expected


def test_json_fields_keeps_booleans_and_numbers_apart() -> None:
    assert value(json_fields({"ok": True}), '{"ok": 1}') == 0.0
    assert value(json_fields({"ok": True}), '{"ok": true}') == 1.0
    with pytest.raises(DefinitionError):
        json_fields({})


def test_a_rubric_is_the_weighted_mean_with_its_tree() -> None:
    rubric = Rubric(
        [contains_all(["db"], name="service").weighing(3), contains_all(["pool"], name="cause").weighing(1)]
    )
    result = rubric("it is the db")
    assert result.score == pytest.approx(0.75)
    assert result.success is False
    assert [(one.name, one.value, one.weight) for one in result.subscores] == [
        ("service", 1.0, 3),
        ("cause", 0.0, 1),
    ]
    assert rubric("db pool").success is True
    assert rubric("").score == 0.0


def test_a_required_grader_gates_the_score() -> None:
    polite = grader(lambda answer: "please" in answer, name="polite", weight=1)
    right = exact_match("please 7", name="right").weighing(1, required=True)
    gated = Rubric([polite, right])
    assert gated("please 8").score == 0.0
    assert gated("please 8").info == {"gated_by": ["right"]}
    assert gated("please 7").score == 1.0
    assert Rubric([polite, right.weighing(1)], success_at=0.5)("please 8").success is True


def test_a_rubric_that_cannot_say_anything_is_refused() -> None:
    one = exact_match("a")
    for graders, text in (([], "sum to 0"), ([one, one], "two graders"), ([one.weighing(-1)], "sum to")):
        with pytest.raises(DefinitionError, match=text):
            Rubric(graders)

    async def later(answer: str) -> float:
        return 1.0

    with pytest.raises(DefinitionError, match="async"):
        grader(later)


@pytest.mark.parametrize("bad", [2.0, -1, float("nan"), None, "1"])
def test_a_grader_that_leaves_the_interval_is_an_error_not_a_score(bad: Any) -> None:
    with pytest.raises(RewardInvalid):
        grader(lambda answer: bad, name="bad")("x")
