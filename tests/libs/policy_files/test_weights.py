"""safetensors headers without torch."""

import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from policy_files import InvalidPolicyDir, TensorInfo, read_tensors, tensors_of_directory


def write(path: Path, header: Mapping[str, object], data: bytes) -> Path:
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


def test_tensors_are_listed_with_dtype_and_shape(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
    }
    found = read_tensors(write(tmp_path / "w.safetensors", header, bytes(26)))
    assert found == {"a": TensorInfo("F32", (2, 3)), "b": TensorInfo("BF16", ())}


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 8),
        ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, 4),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}, 0),
        ({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, 4),
        ({"a": [1, 2]}, 0),
    ],
)
def test_files_whose_header_lies_are_refused(tmp_path: Path, header: dict[str, object], size: int) -> None:
    with pytest.raises(InvalidPolicyDir):
        read_tensors(write(tmp_path / "w.safetensors", header, bytes(size)))


def test_a_tensor_may_not_be_in_two_files(tmp_path: Path) -> None:
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    write(tmp_path / "one.safetensors", header, b"x")
    write(tmp_path / "two.safetensors", header, b"x")
    with pytest.raises(InvalidPolicyDir, match="two files"):
        tensors_of_directory(tmp_path)


def test_no_torch_is_imported() -> None:
    code = "import policy_files, engine_client, sys; assert not {'torch', 'safetensors'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
