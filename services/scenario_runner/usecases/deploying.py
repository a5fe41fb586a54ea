"""Environments whose packed source is sent here: loaded once in its own process, then kept by its digest.

Only the operator's key gets here (the contract of the rpc). Nothing is laid below an environment root:
a process that plays it has the files in its own folder.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scenario_runner.domain.environments import EnvironmentBroken, EnvironmentDescription, PythonEnvironment
from service_kit.errors import InvalidRequest
from upcycle.environment.deployed import MAX_PACKED_BYTES, deployed_path
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import unpack_source
from upcycle.errors import SourceRefused, TasksetInvalid
from upcycle.task_rows import check_name

log = logging.getLogger(__name__)

_NOWHERE: Final = Path("/")

Describe = Callable[[PythonEnvironment, SourceFiles], Awaitable[EnvironmentDescription]]
Keep = Callable[[SourceFiles], Awaitable[None]]
Note = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SentEnvironment:
    """What a caller sends. name: of the environment that the source declares."""

    name: str
    source_digest: str
    packed: bytes


@dataclass(frozen=True, slots=True)
class DeployedEnvironment:
    """As tasksets refer to it."""

    source: PythonEnvironment
    scenarios: tuple[str, ...]


class DeployEnvironment:
    """Accept an environment, as often as it is sent."""

    def __init__(self, describe: Describe, keep: Keep, note: Note) -> None:
        """note: a name and a digest, in the audit log."""
        self._describe = describe
        self._keep = keep
        self._note = note

    async def __call__(self, sent: SentEnvironment) -> DeployedEnvironment:
        """Raises InvalidRequest, Unavailable."""
        try:
            source = PythonEnvironment(
                check_name("environment.name", sent.name), deployed_path(sent.source_digest)
            )
            files = await asyncio.to_thread(_unpacked, sent)
            description = await self._describe(source, files)
        except (SourceRefused, TasksetInvalid) as error:
            raise InvalidRequest(str(error)) from error
        except EnvironmentBroken as error:
            raise InvalidRequest(f"environment cannot be loaded from its pack: {error}") from error
        if not description.scenarios:
            raise InvalidRequest(f"environment {sent.name!r} declares no scenario: there is nothing to play")
        await self._keep(files)
        await self._note(sent.name, files.digest)
        log.info("environment_deployed", extra={"environment": sent.name, "source_digest": files.digest})
        return DeployedEnvironment(source, tuple(sorted(description.scenarios)))


def _unpacked(sent: SentEnvironment) -> SourceFiles:
    if len(sent.packed) > MAX_PACKED_BYTES:
        raise SourceRefused(f"the pack has {len(sent.packed)} bytes, limit {MAX_PACKED_BYTES}")
    files = unpack_source(sent.packed, _NOWHERE)
    if files.digest != sent.source_digest:
        raise SourceRefused(
            f"source_digest is {sent.source_digest[:12]}, and what is packed is source {files.digest[:12]}"
        )
    return files
