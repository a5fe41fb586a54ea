"""The bugs that `make simulate-bugs` puts back stand for code that is there."""

from pathlib import Path

import pytest
from tests.simulation.put_back import BUGS, Bug

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.partition(":")[0])
def test_each_bug_replaces_a_text_that_its_file_has_once(bug: Bug) -> None:
    changes = [(bug.path, bug.was), *([] if bug.also is None else [bug.also[:2]])]
    assert [(ROOT / path).read_text().count(was) for path, was in changes] == [1] * len(changes)
