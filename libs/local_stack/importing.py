"""Which models a running registry has, and how a policy on disk becomes version 0 of a new one."""

from pathlib import Path

from upcycle.api.registry.v1.service_pb2 import GetModelRequest
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.rpc import RemoteNotFound, connect, remote_errors
from upcycle.uploading import import_parts


async def import_policy(
    registry: str, model: str, directory: Path, *, key: str | None, timeout_s: float
) -> bool:
    """True when the model is new, False when the registry has the same weights under that name already. key:
    the operator's.

    Raises FileNotFoundError for a folder that holds no policy, RemoteError for what the registry refuses.
    """
    parts = import_parts(model, directory, if_not_exists=True)
    async with connect(registry, api_key=key) as channel:
        with remote_errors(f"import {directory} as {model}"):
            answer = await RegistryServiceStub(channel).ImportModel(parts, timeout=timeout_s)
    return bool(answer.created)


async def has_model(registry: str, model: str, *, key: str | None, timeout_s: float) -> bool:
    """Whether the registry knows the model."""
    async with connect(registry, api_key=key) as channel:
        try:
            with remote_errors(f"look up {model}"):
                await RegistryServiceStub(channel).GetModel(GetModelRequest(model=model), timeout=timeout_s)
        except RemoteNotFound:
            return False
    return True
