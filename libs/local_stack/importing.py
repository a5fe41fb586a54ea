"""Brings a policy on disk into a running registry as version 0 of a model."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from grpc_edge import connect, remote_errors
from upcycle.api.registry.v1.service_pb2 import FileChunk, ImportHeader, ImportModelRequest
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub

_SUFFIXES: Final = frozenset({".json", ".safetensors", ".jinja", ".txt", ".model"})
_CHUNK_BYTES: Final = 1024 * 1024


async def import_policy(registry: str, model: str, directory: Path, *, timeout_s: float) -> bool:
    """True when the model is new, False when the registry has the same weights under that name already.

    Raises FileNotFoundError for a folder that holds no policy, RemoteError for what the registry refuses.
    """
    files = _policy_files(directory)
    async with connect(registry) as channel:
        with remote_errors(f"import {directory} as {model}"):
            answer = await RegistryServiceStub(channel).ImportModel(_parts(model, files), timeout=timeout_s)
    return bool(answer.created)


def _policy_files(directory: Path) -> list[Path]:
    if not (directory / "config.json").exists():
        raise FileNotFoundError(f"{directory} has no config.json: it is not a Hugging Face model directory")
    return sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)


async def _parts(model: str, files: list[Path]) -> AsyncIterator[ImportModelRequest]:
    yield ImportModelRequest(header=ImportHeader(model=model, if_not_exists=True))
    for path in files:
        with path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                yield ImportModelRequest(chunk=FileChunk(name=path.name, data=data))
