"""Somebody who can write to the object store wants to run code in the trainer."""

import os
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.learner.tensor_files import read_tensors, write_tensors


class Runs:
    """What it calls runs when it is unpickled."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A stored state, as the trainer fetches it."""
    folder = tmp_path / "state"
    write_tensors(folder, {"model/a": torch.ones(3), "random/torch": torch.zeros(4, dtype=torch.uint8)})
    return folder


def index_of(state: Path) -> Metadata:
    found = pickle.loads((state / ".metadata").read_bytes())  # noqa: S301 - written by the fixture
    assert isinstance(found, Metadata)
    return found


def replace_index(state: Path, index: object) -> None:
    (state / ".metadata").write_bytes(pickle.dumps(index))


CALLS = [(os.system, "posix.system"), (eval, "builtins.eval"), (torch.load, "torch.serialization.load")]


@pytest.mark.parametrize(("function", "name"), CALLS)
def test_an_index_that_calls_something_is_refused_and_nothing_runs(
    state: Path, tmp_path: Path, function: Any, name: str
) -> None:
    replace_index(state, Runs(function, f"touch {tmp_path}/ran"))

    with pytest.raises(BrokenArtifact, match=f"its index names {name}, which no index holds"):
        read_tensors(state)
    assert not (tmp_path / "ran").exists()


def test_a_call_inside_of_an_honest_index_is_refused(state: Path, tmp_path: Path) -> None:
    index = index_of(state)
    index.planner_data = Runs(os.system, f"touch {tmp_path}/ran")
    replace_index(state, index)

    with pytest.raises(BrokenArtifact, match=r"posix\.system"):
        read_tensors(state)
    assert not (tmp_path / "ran").exists()


class ByName(pickle.Pickler):
    """Writes members of enums as Python 3.11.2 does, which is that of Debian 12."""

    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_an_index_that_an_older_python_wrote_is_read(state: Path) -> None:
    with (state / ".metadata").open("r+b") as file:
        index = pickle.load(file)  # noqa: S301 - written by the fixture
        file.seek(0)
        ByName(file).dump(index)
        file.truncate()
    assert b"getattr" in (state / ".metadata").read_bytes()

    assert read_tensors(state)["model/a"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("of", [Path, Metadata, torch.Size])
def test_nothing_but_members_of_enums_is_reached_by_name(state: Path, of: type) -> None:
    replace_index(state, Runs(getattr, of, "__init__"))

    with pytest.raises(BrokenArtifact, match=r"its index (names|is of)"):
        read_tensors(state)


def test_tensors_that_call_something_are_refused(state: Path, tmp_path: Path) -> None:
    data = next(state.glob("*.distcp"))
    torch.save(Runs(os.system, f"touch {tmp_path}/ran"), data)
    index = index_of(state)
    for one in index.storage_data.values():
        one.offset, one.length = 0, data.stat().st_size
    replace_index(state, index)

    with pytest.raises(BrokenArtifact):
        read_tensors(state)
    assert not (tmp_path / "ran").exists()


def test_an_index_leads_to_no_file_elsewhere(state: Path, tmp_path: Path) -> None:
    index = index_of(state)
    for one in index.storage_data.values():
        one.relative_path = "../../etc/passwd"
    replace_index(state, index)

    with pytest.raises(BrokenArtifact, match=r"its index names the file '\.\./\.\./etc/passwd'"):
        read_tensors(state)


def test_an_index_takes_no_more_memory_than_its_files_have(state: Path) -> None:
    index = index_of(state)
    named = index.state_dict_metadata["model/a"]
    assert isinstance(named, TensorStorageMetadata)
    named.size = torch.Size([1 << 40])
    replace_index(state, index)

    with pytest.raises(BrokenArtifact, match="its index names 4398046511108 bytes, its files have"):
        read_tensors(state)


@pytest.mark.parametrize("index", [{"a": 1}, Metadata({}, storage_data=None), b"", None])
def test_another_object_is_no_index(state: Path, index: object) -> None:
    replace_index(state, index)

    with pytest.raises(BrokenArtifact, match="its index"):
        read_tensors(state)
