"""What the soak measures on disk, while a process adds and removes folders."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import soak


def test_a_folder_that_goes_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("a", 100), ("b", 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * size)
    (tmp_path / "top").write_bytes(b"x" * 3)
    scandir = os.scandir

    def removes_b_first(path: Any) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "b":
            (tmp_path / "b" / "file").unlink()
            (tmp_path / "b").rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removes_b_first)

    assert soak.size_of(tmp_path) == 103
