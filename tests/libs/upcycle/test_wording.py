"""Numbers, nouns and articles of messages."""

import re
from pathlib import Path

import pytest

from upcycle.errors import TasksetInvalid
from upcycle.results import Coverage
from upcycle.task_rows import canonical_args
from upcycle.wording import amount

ROOT = Path(__file__).parents[3]
_ARTICLE = re.compile(r"\ban? \{type\(")
"""An article before the name of a type: it is wrong before one of `int` and `list`."""


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (1, ("turn",), "1 turn"),
        (0, ("turn",), "0 turns"),
        (2, ("trajectory", "trajectories"), "2 trajectories"),
        (1, ("task has", "tasks have"), "1 task has"),
        (1000, ("task has", "tasks have"), "1000 tasks have"),
    ],
)
def test_a_noun_and_its_verb_follow_the_number(number: int, words: tuple[str, ...], said: str) -> None:
    assert amount(number, *words) == said


def test_one_episode_of_one_task_is_no_plural() -> None:
    assert str(Coverage(1, 2, 1, 1, {})) == "graded 1 of 2 episodes of 1 task"
    assert str(Coverage(1, 1, 1, 1, {})) == "graded 1 of 1 task"


def test_no_article_stands_before_the_name_of_a_type() -> None:
    with pytest.raises(TasksetInvalid, match="arguments are of type int, not an object"):
        canonical_args("7", "t")
    files = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    assert [str(path) for path in files if _ARTICLE.search(path.read_text())] == []
