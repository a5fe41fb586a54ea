"""Policy directories in the form that vLLM can reload in place.

vLLM's CPU build packs the output projection when it starts. With tied embeddings an in-place reload
renews the embedding and leaves that packed copy as it was (seen in 0.32: scores mix new body and old
head; the canary refuses it). With an `lm_head.weight` of its own the projection is a tensor like any
other, and is renewed.
"""

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

from policy_files import InvalidPolicyDir, read_tensors

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def untied(directory: Path) -> Path:
    """A sibling of `directory` with the output projection as a tensor of its own; the same where it is one.

    Raises InvalidPolicyDir, OSError.
    """
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings", False):
        return directory
    target = directory.parent.parent / "untied" / directory.name
    if target.is_dir():
        os.utime(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=".untie-"))
    try:
        _link_all(directory, staging)
        _write_head(directory, staging / "lm_head.safetensors")
        config["tie_word_embeddings"] = False
        (staging / "config.json").unlink()
        (staging / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if not target.is_dir():
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def keep_newest(directory: Path, count: int) -> None:
    """Remove all but the `count` untied siblings that were used last, and what a killed supervisor left
    half-made."""
    folder = directory.parent.parent / "untied"
    for path in folder.glob(".untie-*"):
        shutil.rmtree(path, ignore_errors=True)
    found = sorted(folder.glob("[!.]*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[count:]:
        shutil.rmtree(path, ignore_errors=True)


def _link_all(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, place)


def _write_head(directory: Path, target: Path) -> None:
    """Copy the embedding's bytes into a safetensors file of their own, under the projection's name."""
    for path in sorted(directory.glob("*.safetensors")):
        if EMBEDDING not in read_tensors(path):
            continue
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            entry = json.loads(file.read(length))[EMBEDDING]
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            data = file.read(end - begin)
        header = {HEAD: {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [0, len(data)]}}
        encoded = json.dumps(header).encode("utf-8")
        target.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
        return
    raise InvalidPolicyDir(f"{directory} has no tensor {EMBEDDING!r} to tie or untie")
