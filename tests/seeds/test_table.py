"""The table of the seeds' listings is whole, and does not say `not yet` of what can be typed."""

import shlex
from pathlib import Path

import pytest
from tests.seeds.table import COMMANDS, ELSEWHERE, LISTINGS, PYTHON, SHELL, Row, Status, commands

from upcycle.cli.main import build_app

WITH_A_NOTE = (Status.STAND_IN, Status.OUT, Status.NOT_YET, Status.REFUSED)
OURS = [row for row in SHELL if row.line.startswith("upcycle ")]


def can_be_typed(row: Row) -> bool:
    """Whether the command line has this command with these flags."""
    try:
        build_app().parse_args(shlex.split(row.typed())[1:], exit_on_error=False, print_error=False)
    except Exception:
        return False
    return True


def test_every_listing_and_command_line_of_the_seeds_has_one_row() -> None:
    assert sorted(row.line for row in SHELL) == sorted(commands())
    files = {path.name for path in LISTINGS.iterdir()} - {COMMANDS}
    assert sorted(row.line for row in PYTHON) == sorted(files)


def test_a_row_that_is_no_plain_success_says_what_stands_in_or_is_missing() -> None:
    assert [row.line for row in (*PYTHON, *SHELL) if row.status in WITH_A_NOTE and not row.note] == []
    assert [row.line for row in SHELL if (row.status is Status.REFUSED) != bool(row.refusal)] == []
    assert [row.line for row in SHELL if (row.status is Status.OUT) == (row in OURS)] == []


@pytest.mark.parametrize("row", OURS, ids=lambda row: row.line)
def test_a_row_says_not_yet_only_while_the_command_line_lacks_it(row: Row) -> None:
    assert can_be_typed(row) is (row.status is not Status.NOT_YET), (
        f"{row.line!r} is {row.status.value!r}: change its row"
    )


def test_the_listings_that_run_elsewhere_do() -> None:
    text = (Path(__file__).parents[1] / "e2e" / "test_interactive_training.py").read_text()
    assert [name for name in ELSEWHERE if f'LISTINGS / "{name}"' not in text] == []
