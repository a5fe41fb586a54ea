"""The query of `upcycle train --sessions`: what it means, and what is refused by name."""

from datetime import UTC, datetime, timedelta

import pytest

from identities.entities import RECORDED_GROUP
from upcycle.run_config import RunConfigInvalid
from upcycle.run_config.flags import evaluation_run, training_run
from upcycle.session_query import SessionQuery, parse_sessions

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def test_each_part_narrows_the_query() -> None:
    assert parse_sessions("all") == SessionQuery()
    assert parse_sessions("key=abcd1234, group=nightly:2") == SessionQuery("abcd1234", "nightly:2")
    query = parse_sessions("since=7d,before=2026-11-27T10:00")
    assert query.span(NOW) == (NOW - timedelta(days=7), datetime(2026, 11, 27, 10, tzinfo=UTC))
    both = parse_sessions("label=flow:refund, label=env:prod,group=a")
    assert both == SessionQuery(group="a", labels=("env:prod", "flow:refund"))
    assert parse_sessions("since=36h").span(NOW) == (NOW - timedelta(hours=36), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is none of key=…, group=…, since=…, before=…, label=…, nor 'all'"),
        ("labels=x:y", "'labels=x:y' is none of"),
        ("label=x", "'x' is no label: write name:value"),
        ("label=Flow:x", "'Flow' is no name of a label: it is 1 to 64 of"),
        ("label=flow:two words", "label flow is 'two words': a value is 1 to 64 of"),
        ("label=a:x,label=a:y", "label 'a' is given twice"),
        (",".join(f"label=n{n}:x" for n in range(9)), "9 labels, and a session has at most 8"),
        ("group", "'group' is none of"),
        ("all,group=x", "'all' is none of"),
        ("group=a,group=b", "group is given twice"),
        ("group=-a", "group='-a', expected 1 to 40 of"),
        ("key=ab", "key='ab' is no id of an API key"),
        ("since=soon", "'soon' is neither an age such as 24h or 7d nor a date"),
        ("since=0d", "'0d' is neither"),
        ("since=2026-11-02,before=2026-11-01", "nothing is between"),
        ("since=1d,before=2d", "nothing is between"),
    ],
)
def test_a_part_that_means_nothing_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its text is compared
        parse_sessions(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["a", "nightly-2", "a" * 40, "-a", "a" * 41, "a b", ""])
def test_groups_are_named_as_rewards_may_name_them(name: str) -> None:
    try:
        is_taken = parse_sessions(f"group={name}").group == name
    except ValueError:
        is_taken = False
    assert is_taken == (RECORDED_GROUP.fullmatch(name) is not None)


def test_the_query_is_checked_where_a_run_is_described_and_trains_alone() -> None:
    assert training_run("m", {"sessions": "all"}).sessions == "all"
    with pytest.raises(RunConfigInvalid, match="sessions: 'grup=x' is none of"):
        training_run("m", {"sessions": "grup=x"})
    with pytest.raises(RunConfigInvalid, match="sessions is for purpose TRAIN only"):
        evaluation_run("m", "ts", sessions="all")
