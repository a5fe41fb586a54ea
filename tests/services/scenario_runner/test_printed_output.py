"""What an episode's process left where its output was: read without waiting, or nothing."""

import os
from pathlib import Path

import pytest

from scenario_runner.adapters.printed_output import FILE_NAME, end_of_output
from upcycle.environment.server_secrets import HiddenValues


def test_the_end_of_what_was_printed(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"first\n" + b"x" * 10 + b"\nlast \xff\n")
    assert end_of_output(tmp_path, limit=8) == "last \ufffd"
    assert end_of_output(tmp_path).startswith("first\nxxx")


def test_the_rest_of_a_secret_that_began_before_is_cut_out_too(tmp_path: Path) -> None:
    hidden = HiddenValues({"TOKEN": "canary-61f0e2"})
    (tmp_path / FILE_NAME).write_bytes(b"first canary-61f0e2 last")
    assert end_of_output(tmp_path, limit=14, hidden=hidden) == "[secret TOKEN] last"
    assert end_of_output(tmp_path, hidden=hidden) == "first [secret TOKEN] last"


@pytest.mark.parametrize("what", ["absent", "pipe", "folder", "link"])
def test_what_is_no_file_any_more_says_nothing(tmp_path: Path, what: str) -> None:
    path, secret = tmp_path / FILE_NAME, tmp_path / "secret"
    secret.write_text("of the fleet")
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(secret)
    assert end_of_output(tmp_path) == ""
