"""Declarations, leaks and changes out of states and conversations."""

import pytest

from reward_monitors import Declared
from reward_monitors.reading import Node, Shown, changed_keys, components_of, declared_in, leaks_in, shadow_of


def test_what_an_author_declares() -> None:
    state = {
        "watch": {
            "secrets": ["cause=x"],
            "protected": {"b": 1, "a": 2},
            "evidence": ["trace"],
            "impossible": True,
            "chance": 0.25,
        }
    }
    expected = Declared(("cause=x",), '{"a":2,"b":1}', ("trace",), True, 0.25)
    assert declared_in(state) == expected


@pytest.mark.parametrize(
    "state", [None, 3, {}, {"watch": 1}, {"watch": {"secrets": "x", "chance": 2, "impossible": 1}}]
)
def test_what_declares_nothing(state: object) -> None:
    assert declared_in(state) == Declared()


def test_which_keys_changed() -> None:
    first = {"a": 1, "b": [1], "watch": {"secrets": []}}
    assert changed_keys(first, {"a": 1, "b": [1, 2], "c": 0, "watch": {}}) == ("b", "c")
    assert changed_keys(first, dict(first)) == ()
    assert changed_keys(1, 2) == ("",)


def test_a_secret_is_found_in_any_case_and_spelling() -> None:
    shown = [
        Shown("the prompt", "nothing"),
        Shown("recent_deploys", "v3\nRoot Cause: coral-ads / bad_deploy"),
    ]
    assert leaks_in(shown, ("root-cause=coral-ads/bad_deploy",)) == ("recent_deploys",)


def test_what_the_agent_wrote_itself_is_no_leak() -> None:
    echo = Shown("annotate", "noted root_cause=a/b", said="root_cause=a/b")
    assert leaks_in([echo], ("root_cause=a/b",)) == ()


def test_a_part_of_a_word_is_no_leak_and_a_short_secret_is_none() -> None:
    assert leaks_in([Shown("x", "the spool is empty")], ("pool",)) == ()
    assert leaks_in([Shown("x", "no")], ("no",)) == ()


def test_components_are_leaves_with_their_share() -> None:
    tree = [Node("answer", 3, 0.5, [Node("cause", 1, 1.0), Node("class", 1, 0.0)]), Node("brief", 1, 1.0)]
    found = components_of(tree)
    assert {name: (one.paid, one.value) for name, one in found.items()} == {
        "answer/cause": (0.375, 1.0),
        "answer/class": (0.0, 0.0),
        "brief": (0.25, 1.0),
    }


def test_a_shadow_has_no_weight_and_its_name() -> None:
    assert shadow_of([Node("shadow_tests", 0, 1.0), Node("a", 1, 0.0)]) is True
    assert shadow_of([Node("a", 1, 1.0, [Node("shadow", 0, 0.4)]), Node("shadow_b", 0, 1.0)]) is False
    assert shadow_of([Node("shadow", 0.5, 1.0), Node("note", 0, 1.0)]) is None
    assert components_of([Node("shadow", 0, 1.0), Node("a", 2, 1.0)]).keys() == {"a"}
