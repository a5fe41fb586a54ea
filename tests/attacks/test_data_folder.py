"""Another login of the machine wants to read what a platform wrote."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks.strangers import STRANGER, as_stranger, read_as_stranger

from local_stack.data_folder import make_private
from local_stack.stack import Stack, StackRefused, StackSettings
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import write_source

OTHERS = 0o077


@pytest.fixture(autouse=True)
def ordinary_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def old_folder(place: Path) -> Path:
    """Of a platform of 0.3.0: what its files and folders were."""
    folder = place / "up"
    for name in ("sql", "s3/objects", "cache/policies", "nats/ports"):
        (folder / name).mkdir(parents=True)
    for name in ("sql/scenario_runner.sqlite", "s3/objects/1.dat", "state.json", ".lock"):
        (folder / name).write_text("held-out answers")
    (folder / "operator.key").touch(mode=0o600)
    return folder


def open_to_others(folder: Path) -> list[str]:
    found = (folder, *folder.rglob("*"))
    return [str(path) for path in found if not path.is_symlink() and path.stat().st_mode & OTHERS]


@as_stranger
def test_a_stranger_reads_nothing_of_an_older_platform_once_it_was_started(old_folder: Path) -> None:
    assert f"{old_folder}/sql/scenario_runner.sqlite" in read_as_stranger(old_folder)

    make_private(old_folder)

    assert read_as_stranger(old_folder) == []


def test_an_older_data_folder_is_closed_with_all_that_is_in_it_and_one_line(old_folder: Path) -> None:
    said = make_private(old_folder)

    assert said == (
        f"{old_folder}: 11 files and folders in it, and it itself (mode 0755), were open to other users, "
        "now to their own alone"
    )
    assert open_to_others(old_folder) == []
    assert make_private(old_folder) == ""


def test_a_link_in_an_older_data_folder_closes_nothing_elsewhere(old_folder: Path, place: Path) -> None:
    theirs = place / "theirs"
    theirs.mkdir(mode=0o755)
    (old_folder / "cache" / "link").symlink_to(theirs)

    make_private(old_folder)

    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755


def test_a_folder_that_holds_other_things_keeps_them_as_they_are(old_folder: Path) -> None:
    (old_folder / "README.md").touch(mode=0o644)

    assert "files and folders of a platform in it were open" in make_private(old_folder)

    left = {str(old_folder), str(old_folder / "README.md")}
    assert set(open_to_others(old_folder)) == left
    assert make_private(old_folder) == ""


@as_stranger
@pytest.mark.parametrize("mode", [0o777, 0o700])
async def test_a_folder_that_a_stranger_laid_out_is_no_data_folder(old_folder: Path, mode: int) -> None:
    os.chown(old_folder, STRANGER, STRANGER)
    os.chmod(old_folder, mode)

    with pytest.raises(StackRefused, match=rf"{old_folder} .*another user \(uid {STRANGER}\)"):
        await Stack(StackSettings(old_folder)).up()


def test_a_deployed_source_stays_readable_to_episodes_of_another_user(place: Path) -> None:
    before = os.umask(OTHERS)
    try:
        write_source(SourceFiles(place / "source", "env.py", {"env.py": b"", "data/cases.json": b"{}"}))
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place / "source").rglob("*")}
    assert modes == {"env.py": 0o644, "data": 0o755, "cases.json": 0o644}
    assert stat.S_IMODE((place / "source").stat().st_mode) == 0o755
