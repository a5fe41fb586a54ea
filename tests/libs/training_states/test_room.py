"""A disk that is full while a state is written."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpo_trainer.learner.snapshots import HostSnapshot, WriterThread
from service_kit.errors import StoreFull
from training_states.files import read_tensors, write_tensors
from training_states.room import room_for

STATE = {"model/a": torch.rand(100_000)}
"""400,000 bytes."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "upcycle-test", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted on this machine")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named_with_its_folder_and_what_is_free(small: Path) -> None:
    with pytest.raises(StoreFull) as raised:
        write_tensors(small / "state", STATE)
    text = str(raised.value)
    assert f"{small}/state for a training state, 400000 bytes" in text
    assert "larger disk" in text


def test_an_index_that_has_no_room_is_a_full_disk_too(small: Path) -> None:
    (small / "state").mkdir()
    (small / "filler").write_bytes(bytes(256 * 1024 - 8192))
    tensors = {f"model/{number:04}": torch.zeros(1) for number in range(60)}
    with pytest.raises(StoreFull, match="for a training state, 240 bytes"):
        write_tensors(small / "state", tensors)


async def test_a_state_is_whole_once_there_is_room(small: Path) -> None:
    (small / "filler").write_bytes(bytes(100 * 1024))
    writer, fits = WriterThread(), {"model/a": torch.rand(50_000)}
    snapshot = HostSnapshot(fits, (), lambda _: None, writer)
    try:
        with pytest.raises(StoreFull):
            await snapshot.save(small / "state")
        await asyncio.to_thread((small / "filler").unlink)
        await snapshot.save(small / "state")
    finally:
        writer.close()
    assert torch.equal(read_tensors(small / "state")["model/a"], fits["model/a"])


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EROFS])
def test_another_error_of_a_disk_that_is_nearly_full_is_no_full_disk(small: Path, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as raised, room_for("a state", 1 << 30, small):
        raise OSError(number, os.strerror(number))
    assert not isinstance(raised.value, StoreFull)


def test_what_is_no_full_disk_keeps_its_error(tmp_path: Path) -> None:
    (tmp_path / "tensors.safetensors").mkdir()
    with pytest.raises(Exception, match=r"directory") as raised:
        write_tensors(tmp_path, STATE)
    assert not isinstance(raised.value, StoreFull)
