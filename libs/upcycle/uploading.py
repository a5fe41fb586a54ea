"""A policy on disk, as the stream that ImportModel takes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from upcycle.api.registry.v1.service_pb2 import FileChunk, ImportHeader, ImportModelRequest

_SUFFIXES: Final = frozenset({".json", ".safetensors", ".jinja", ".txt", ".model"})
_CHUNK_BYTES: Final = 1024 * 1024


def import_parts(model: str, directory: Path, *, if_not_exists: bool) -> AsyncIterator[ImportModelRequest]:
    """Header, then the files of a Hugging Face directory in chunks. Raises FileNotFoundError at once."""
    if not (directory / "config.json").exists():
        raise FileNotFoundError(f"{directory} has no config.json: it is not a Hugging Face model directory")
    files = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
    return _parts(ImportHeader(model=model, if_not_exists=if_not_exists), files)


async def _parts(header: ImportHeader, files: list[Path]) -> AsyncIterator[ImportModelRequest]:
    yield ImportModelRequest(header=header)
    for path in files:
        with path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                yield ImportModelRequest(chunk=FileChunk(name=path.name, data=data))
