"""The source that grades again: the run's own, as it was packed, or a file that the author edited."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from upcycle.environment.deployed import DEPLOYED
from upcycle.environment.source_files import LIMITS, SourceFiles, source_digest
from upcycle.environment.source_pack import unpack_source, write_source
from upcycle.errors import SourceRefused
from upcycle.regrading.chosen import GradedRun
from upcycle.regrading.errors import RegradeRefused
from upcycle.task_rows import EnvironmentRef

if TYPE_CHECKING:
    from upcycle.platform import Platform

READ_S: Final = 120.0
"""For a whole source."""
_MAX_PACKED_BYTES: Final = 2 * LIMITS.total_bytes
_SHOWN: Final = 12
_GIVE: Final = "name the file that declares the environment: --source env.py"

ReadPacked = Callable[[str], Awaitable[bytes]]
Places = dict[tuple[EnvironmentRef, str], EnvironmentRef]


async def read_packed(platform: "Platform", digest: str) -> bytes:
    """The pack of a source that a platform keeps. Raises RegradeRefused for one that it does not keep, or
    does not give to this caller."""
    from upcycle.api.taskset.v1.service_pb2 import GetSourceRequest
    from upcycle.rpc import RemoteDenied, RemoteNotFound, RemoteRefused, remote_errors

    packed = bytearray()
    try:
        with remote_errors(f"read source {digest[:_SHOWN]}"):
            request = GetSourceRequest(source_digest=digest)
            async for part in platform.tasksets.GetSource(request, timeout=READ_S):
                packed += part.packed
                if len(packed) > _MAX_PACKED_BYTES:
                    raise RegradeRefused(
                        f"source {digest[:_SHOWN]} has more than {_MAX_PACKED_BYTES:,} bytes packed", _GIVE
                    )
    except RemoteNotFound as error:
        raise RegradeRefused(error.message, _GIVE) from error
    except RemoteDenied as error:
        raise RegradeRefused(f"packed sources are the operator's to read: {error.message}", _GIVE) from error
    except RemoteRefused as error:
        if error.code.name != "UNIMPLEMENTED":
            raise
        raise RegradeRefused("the platform is of a version that gives no sources", _GIVE) from error
    return bytes(packed)


async def own_sources(run: GradedRun, read: ReadPacked, folder: Path) -> Places:
    """Each environment of a run in its own source, laid below a folder. Raises RegradeRefused."""
    laid: dict[str, SourceFiles] = {}
    for environment, digest in run.environments:
        if environment.url:
            raise RegradeRefused(
                f"environment {environment.name!r} is served at {environment.url}: no source of it is kept, "
                "and what is served there now need not be what judged the run",
                _GIVE,
            )
        if not digest:
            raise RegradeRefused(f"which source judged {run.run_id} is not known", _GIVE)
        if digest not in laid:
            laid[digest] = await asyncio.to_thread(_laid, await read(digest), digest, folder)
    return {
        (environment, digest): EnvironmentRef(environment.name, str(laid[digest].root / laid[digest].entry))
        for environment, digest in run.environments
    }


def own_files(run: GradedRun) -> Places:
    """Each environment of an evaluation in one process where its tasks say, if the source there is still what
    judged it. Raises RegradeRefused."""
    places: Places = {}
    for environment, digest in run.environments:
        where, path = f"environment {environment.name!r}", environment.path
        if not path or path.startswith(DEPLOYED) or not digest:
            raise RegradeRefused(f"{where}: no source of it is kept beside the trajectories", _GIVE)
        try:
            now = source_digest(path)
        except SourceRefused as error:
            raise RegradeRefused(f"{where} is not where it was played: {error.message}", _GIVE) from error
        if now != digest:
            raise RegradeRefused(
                f"{where} was judged by source {digest[:_SHOWN]}, and {path} is source {now[:_SHOWN]} now: "
                "an evaluation in one process packs no source",
                f"to grade with what lies there now: --source {path}",
            )
        places[environment, digest] = environment
    return places


def given_source(run: GradedRun, file: Path) -> Places:
    """Each environment of a run in this file. Raises RegradeRefused where it is none."""
    if file.suffix != ".py" or not file.is_file():
        said = "is no Python file" if file.exists() else "is not there"
        raise RegradeRefused(f"--source {file} {said}", _GIVE)
    return {
        (environment, digest): EnvironmentRef(environment.name, str(file.resolve()))
        for environment, digest in run.environments
    }


def _laid(packed: bytes, digest: str, folder: Path) -> SourceFiles:
    try:
        files = unpack_source(packed, folder / digest)
    except SourceRefused as error:
        raise RegradeRefused(f"source {digest[:_SHOWN]} cannot be read: {error.message}", _GIVE) from error
    if files.digest != digest:
        raise RegradeRefused(f"what is kept as source {digest[:_SHOWN]} is {files.digest[:_SHOWN]}", _GIVE)
    write_source(files)
    return files
