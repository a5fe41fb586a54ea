"""Files with keys, as all that have one read and write them: no other user's eyes, and nothing but a file."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from event_bus.keys import BusKeyRefused, public_key
from scenario_runner.adapters.sealing import Sealer, SecretsKeyRefused
from service_kit.private_files import read_private, write_private
from signed_objects import SigningKey, SigningKeyRefused
from upcycle.errors import UpcycleError


class Refused(UpcycleError):
    kind = "refused"


Reader = tuple[Callable[[Path], object], type[UpcycleError]]
READERS: list[Reader] = [
    (lambda path: read_private(path, "the key", Refused), Refused),
    (public_key, BusKeyRefused),
    (SigningKey.read, SigningKeyRefused),
    (Sealer, SecretsKeyRefused),
]


@pytest.fixture(params=READERS, ids=["module", "bus", "signing", "secrets"])
def reader(request: pytest.FixtureRequest) -> Reader:
    found: Reader = request.param
    return found


def refused(reader: Reader, path: Path, text: str) -> None:
    read, error = reader
    with pytest.raises(error, match=text) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.timeout(20)
def test_a_pipe_holds_no_key_and_stops_no_reader(reader: Reader, tmp_path: Path) -> None:
    """Who can write in the folder would have the process wait for ever."""
    os.mkfifo(tmp_path / "key", 0o600)
    refused(reader, tmp_path / "key", "is no file")


@pytest.mark.timeout(20)
def test_a_device_without_an_end_fills_no_memory(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to("/dev/zero")
    refused(reader, tmp_path / "key", "is no file")


def test_a_file_that_is_too_large_for_a_key_is_not_read(reader: Reader, tmp_path: Path) -> None:
    with open(os.open(tmp_path / "key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.truncate(8 << 30)
    refused(reader, tmp_path / "key", "8589934592 bytes")


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o666])
def test_a_file_that_others_can_open_is_refused_with_the_way_out(
    reader: Reader, tmp_path: Path, mode: int
) -> None:
    write_private(tmp_path / "key", b"x")
    (tmp_path / "key").chmod(mode)
    refused(reader, tmp_path / "key", "other users can open .*chmod 600")


def test_what_is_not_there_and_what_is_a_folder_are_named(reader: Reader, tmp_path: Path) -> None:
    refused(reader, tmp_path / "none", "cannot be read: No such file")
    refused(reader, tmp_path, "is no file")


def test_a_group_of_its_own_may_read_it(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"x")
    (tmp_path / "key").chmod(0o640)
    assert read_private(tmp_path / "key", "the key", Refused) == b"x"


def test_a_file_appears_whole_and_was_never_open_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "deep" / "key", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "deep" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
    assert os.listdir(tmp_path / "deep") == ["key"]


def test_what_a_killed_writer_or_a_stranger_left_is_not_written_into(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "key.partial").symlink_to(victim)
    write_private(tmp_path / "key", b"x")
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "key").read_bytes() == b"x"


def test_a_key_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is encrypted with a key that a loss of power took is lost, too."""
    written, real = list[tuple[int, bool]](), os.fsync

    def seen(file: int) -> None:
        real(file)
        written.append((os.fstat(file).st_size, (tmp_path / "key").exists()))

    monkeypatch.setattr(os, "fsync", seen)
    write_private(tmp_path / "key", b"secret")
    assert written[0] == (6, False)
    assert [is_named for _, is_named in written] == [False, True]  # the folder, after that
