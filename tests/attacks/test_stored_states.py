"""Somebody who can write to the object store wants to run code in the trainer, or in the command that an
operator runs to convert old states."""

import json
import os
import pickle
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.support.pickled_states import write_pickled
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from training_states import InvalidStateFiles
from training_states.files import read_tensors, write_tensors
from training_states.pickled import read_pickled

TENSORS = {"model/a": torch.ones(3), "random/torch": torch.zeros(4, dtype=torch.uint8)}


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
    write_tensors(folder, TENSORS)
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """One of an earlier trainer, as the command that converts it fetches it."""
    folder = tmp_path / "old"
    write_pickled(folder, TENSORS)
    return folder


def change_index(state: Path, **changes: object) -> None:
    file = state / "index.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_nothing_that_the_trainer_writes_is_a_pickle(state: Path) -> None:
    assert sorted(file.name for file in state.iterdir()) == ["index.json", "tensors.safetensors"]
    for file in state.iterdir():
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError)):
            pickle.loads(file.read_bytes())  # noqa: S301 - written by the fixture
    found = read_tensors(state)
    assert found.keys() == TENSORS.keys()
    for name, one in TENSORS.items():
        assert torch.equal(found[name], one)
        assert found[name].dtype == one.dtype


@pytest.mark.parametrize("file", ["index.json", "tensors.safetensors"])
def test_a_pickle_in_the_place_of_a_file_is_refused_and_nothing_runs(
    state: Path, tmp_path: Path, file: str
) -> None:
    for evil in (pickle.dumps(Runs(os.system, f"touch {tmp_path}/ran")), None):
        if evil is None:
            torch.save(Runs(os.system, f"touch {tmp_path}/ran"), state / file)
        else:
            (state / file).write_bytes(evil)
        with pytest.raises(InvalidStateFiles, match=file):
            read_tensors(state)
    assert not (tmp_path / "ran").exists()


def test_the_trainer_opens_no_state_of_an_earlier_one(old: Path) -> None:
    with pytest.raises(InvalidStateFiles, match=r"no index\.json"):
        read_tensors(old)


def test_the_trainer_has_no_reader_of_pickled_states_and_none_can_be_imported_into_it() -> None:
    """The boundary is a contract of import-linter, too; this is the process."""
    program = (
        "import sys, grpo_trainer.app, grpo_trainer.learner.torch_learner, grpo_trainer.learner.rank_worker\n"
        "print([name for name in sys.modules if name.startswith('training_states.')])"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "training_states.files" in answer.stdout
    assert "pickled" not in answer.stdout
    assert "converting" not in answer.stdout


@pytest.mark.parametrize("name", ["../old/tensors.safetensors", "/etc/passwd", "", ".."])
def test_an_index_of_json_leads_to_no_file_elsewhere(state: Path, name: str) -> None:
    change_index(state, files={name: ["model/a"]})

    with pytest.raises(InvalidStateFiles, match=r"index\.json names the file"):
        read_tensors(state)


@pytest.mark.parametrize(
    "names", [["model/a"], ["model/a", "random/torch", "model/b"], [], "model/a", [["model/a"]]]
)
def test_a_state_that_lacks_a_tensor_or_has_another_is_refused(state: Path, names: object) -> None:
    """An optimizer without one of its moments would go on, and differently."""
    change_index(state, files={"tensors.safetensors": names})

    with pytest.raises(InvalidStateFiles, match=r"(index\.json|tensors\.safetensors)"):
        read_tensors(state)


@pytest.mark.parametrize("change", [{"format": "other"}, {"version": 2}, {"version": "1"}, {"files": {}}])
def test_a_state_of_another_format_is_refused_by_name(state: Path, change: dict[str, object]) -> None:
    change_index(state, **change)

    with pytest.raises(InvalidStateFiles, match=r"index\.json"):
        read_tensors(state)


@pytest.mark.parametrize("index", ["[]", "null", "{", '{"format": {}}', "[" * 100_000])
def test_another_document_is_no_index(state: Path, index: str) -> None:
    (state / "index.json").write_text(index)

    with pytest.raises(InvalidStateFiles, match=r"index\.json"):
        read_tensors(state)


def test_a_header_takes_no_more_memory_than_its_file_has(state: Path) -> None:
    file = state / "tensors.safetensors"
    header = json.dumps(
        {"model/a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
    ).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    change_index(state, files={file.name: ["model/a"]})

    with pytest.raises(InvalidStateFiles, match=r"tensors\.safetensors"):
        read_tensors(state)


def test_a_tensor_in_two_files_is_refused(state: Path) -> None:
    save_file({"model/a": torch.zeros(3)}, state / "more.safetensors")
    change_index(state, files={"tensors.safetensors": [*TENSORS], "more.safetensors": ["model/a"]})

    with pytest.raises(InvalidStateFiles, match="model/a"):
        read_tensors(state)


def index_of(old: Path) -> Metadata:
    found = pickle.loads((old / ".metadata").read_bytes())  # noqa: S301 - written by the fixture
    assert isinstance(found, Metadata)
    return found


def replace_index(old: Path, index: object) -> None:
    (old / ".metadata").write_bytes(pickle.dumps(index))


CALLS = [(os.system, "posix.system"), (eval, "builtins.eval"), (torch.load, "torch.serialization.load")]


@pytest.mark.parametrize(("function", "name"), CALLS)
def test_a_pickled_index_that_calls_something_is_refused_and_nothing_runs(
    old: Path, tmp_path: Path, function: Any, name: str
) -> None:
    replace_index(old, Runs(function, f"touch {tmp_path}/ran"))

    with pytest.raises(InvalidStateFiles, match=f"its index names {name}, which no index holds"):
        read_pickled(old)
    assert not (tmp_path / "ran").exists()


def test_a_call_inside_of_an_honest_index_is_refused(old: Path, tmp_path: Path) -> None:
    index = index_of(old)
    index.planner_data = Runs(os.system, f"touch {tmp_path}/ran")
    replace_index(old, index)

    with pytest.raises(InvalidStateFiles, match=r"posix\.system"):
        read_pickled(old)
    assert not (tmp_path / "ran").exists()


class ByName(pickle.Pickler):
    """Writes members of enums as Python 3.11.2 does, which is that of Debian 12."""

    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_an_index_that_an_older_python_wrote_is_read(old: Path) -> None:
    with (old / ".metadata").open("r+b") as file:
        index = pickle.load(file)  # noqa: S301 - written by the fixture
        file.seek(0)
        ByName(file).dump(index)
        file.truncate()
    assert b"getattr" in (old / ".metadata").read_bytes()

    assert read_pickled(old)["model/a"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("of", [Path, Metadata, torch.Size])
def test_nothing_but_members_of_enums_is_reached_by_name(old: Path, of: type) -> None:
    replace_index(old, Runs(getattr, of, "__init__"))

    with pytest.raises(InvalidStateFiles, match=r"its index (names|is of)"):
        read_pickled(old)


def test_tensors_that_call_something_are_refused(old: Path, tmp_path: Path) -> None:
    data = next(old.glob("*.distcp"))
    torch.save(Runs(os.system, f"touch {tmp_path}/ran"), data)
    index = index_of(old)
    for one in index.storage_data.values():
        one.offset, one.length = 0, data.stat().st_size
    replace_index(old, index)

    with pytest.raises(InvalidStateFiles):
        read_pickled(old)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_index_leads_to_no_file_elsewhere(old: Path) -> None:
    index = index_of(old)
    for one in index.storage_data.values():
        one.relative_path = "../../etc/passwd"
    replace_index(old, index)

    with pytest.raises(InvalidStateFiles, match=r"its index names the file '\.\./\.\./etc/passwd'"):
        read_pickled(old)


def test_a_pickled_index_takes_no_more_memory_than_its_files_have(old: Path) -> None:
    index = index_of(old)
    named = index.state_dict_metadata["model/a"]
    assert isinstance(named, TensorStorageMetadata)
    named.size = torch.Size([1 << 40])
    replace_index(old, index)

    with pytest.raises(InvalidStateFiles, match="its index names 4398046511108 bytes, its files have"):
        read_pickled(old)


@pytest.mark.parametrize("index", [{"a": 1}, Metadata({}, storage_data=None), b"", None])
def test_another_object_is_no_pickled_index(old: Path, index: object) -> None:
    replace_index(old, index)

    with pytest.raises(InvalidStateFiles, match="its index"):
        read_pickled(old)
