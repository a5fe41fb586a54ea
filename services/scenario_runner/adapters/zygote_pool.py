"""The zygotes of a fleet: one per environment and source, started when asked for, replaced when dead.

An edit of an environment is a new source, and so a new zygote. The old one stays for its episodes, and for
runs that are judged by it; unused for RETIRE_AFTER_S, it is ended. The newest one is ended after IDLE_AFTER_S
without a play: the next play starts another.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from scenario_runner.adapters.zygotes import WarmEnvironment, ZygoteOptions, remove_leftovers
from scenario_runner.domain.environments import EnvironmentBroken, PythonEnvironment, SourceChanged
from upcycle.environment.deployed import deployed_digest
from upcycle.environment.source_files import SourceFiles, read_source
from upcycle.errors import SourceRefused

log = logging.getLogger(__name__)

RETIRE_AFTER_S: Final = 60.0
IDLE_AFTER_S: Final = 3600.0
_LOOK_EVERY_S: Final = 5.0
_TRIES: Final = 5
"""Of loading what lies there now, while it is being edited."""

FindSource = Callable[[str], Awaitable[SourceFiles | None]]
"""The source with a digest; None for one that was never kept."""

_Key = tuple[PythonEnvironment, str]


class ZygotePool:
    """`stop` ends every zygote with its episodes. find_source: reads what was packed at submit."""

    def __init__(
        self,
        options: ZygoteOptions,
        find_source: FindSource,
        *,
        retire_after_s: float = RETIRE_AFTER_S,
        idle_after_s: float = IDLE_AFTER_S,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._options = options
        self._find_source = find_source
        self._retire_after_s = retire_after_s
        self._idle_after_s = idle_after_s
        self._look_every_s = look_every_s
        self._zygotes: dict[_Key, asyncio.Task[WarmEnvironment]] = {}
        self._newest: dict[PythonEnvironment, str] = {}
        self._dead: list[asyncio.Task[WarmEnvironment]] = []
        """Those that were replaced; their folders are still there."""
        self._retiring: asyncio.Task[None] | None = None
        self._has_swept = False

    @property
    def digests(self) -> list[tuple[str, str]]:
        """(path, source digest) of every zygote that runs or is being started."""
        return [(source.path, digest) for source, digest in self._zygotes]

    async def files_now(self, source: PythonEnvironment) -> SourceFiles:
        """The source that lies there, or that was deployed. Raises EnvironmentBroken."""
        try:
            if digest := deployed_digest(source.path):
                return await self._deployed(digest)
            return await asyncio.to_thread(read_source, source.path)
        except SourceRefused as error:
            raise EnvironmentBroken(str(error)) from error

    async def load(self, source: PythonEnvironment, files: SourceFiles) -> WarmEnvironment:
        """The zygote of a source that lies nowhere yet. Raises EnvironmentBroken."""
        return await self._running(source, files.digest) or await self._start(source, files)

    async def get(self, source: PythonEnvironment, digest: str = "") -> WarmEnvironment:
        """The running zygote of this source. digest: "" is what lies there now. Raises EnvironmentBroken, and
        SourceChanged where another source lies there and this one is not kept."""
        if digest:
            return await self._running(source, digest) or await self._begun(source, digest)
        for _ in range(_TRIES):
            files = await self.files_now(source)
            try:
                zygote = await self._running(source, files.digest) or await self._start(source, files)
            except SourceChanged:
                continue
            self._newest[source] = zygote.source_digest
            return zygote
        raise EnvironmentBroken(f"{source.path} changes while it is being loaded; save it, then try again")

    async def _begun(self, source: PythonEnvironment, digest: str) -> WarmEnvironment:
        """A new zygote of the source with this digest: as it lies there, or else as it is kept."""
        try:
            files = await self.files_now(source)
            if files.digest == digest:
                return await self._start(source, files)
            found = f"{source.path} has source {files.digest[:12]} now"
        except EnvironmentBroken as error:
            if not isinstance(error.__cause__, SourceRefused) and not isinstance(error, SourceChanged):
                raise
            found = str(error)
        kept = await self._find_source(digest)
        if kept is None:
            raise SourceChanged(
                f"{found}; the run is judged by source {digest[:12]}, which is not kept: submit the run again"
            )
        return await self._start(source, kept, is_in_place=False)

    async def _deployed(self, digest: str) -> SourceFiles:
        files = await self._find_source(digest)
        if files is None:
            raise EnvironmentBroken(f"no source {digest} is deployed here; `upcycle deploy` sends one")
        return files

    async def stop(self) -> None:
        """End every zygote and its episodes."""
        if self._retiring is not None:
            self._retiring.cancel()
        tasks, self._zygotes, self._dead = [*self._zygotes.values(), *self._dead], {}, []
        for task in tasks:
            task.cancel()
        zygotes = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(zygote.stop() for zygote in zygotes if isinstance(zygote, WarmEnvironment)))

    async def _running(self, source: PythonEnvironment, digest: str) -> WarmEnvironment | None:
        """The zygote that runs or is being started; None where there is none that lives."""
        task = self._zygotes.get((source, digest))
        if task is None or (task.done() and _is_dead(task)):
            return None
        if task.done():
            task.result().used_at = asyncio.get_running_loop().time()
        return await asyncio.shield(task)

    async def _start(
        self, source: PythonEnvironment, files: SourceFiles, *, is_in_place: bool = True
    ) -> WarmEnvironment:
        key = (source, files.digest)
        task = self._zygotes.get(key)
        if task is not None and task.done() and _is_dead(task):
            log.warning("zygote_replaced", extra={"path": source.path})
            self._dead.append(task)
            task = None
        if task is None:
            task = asyncio.ensure_future(self._started(source, files, is_in_place))
            self._zygotes[key] = task
            self._begin_to_retire()
        return await asyncio.shield(task)

    async def _started(
        self, source: PythonEnvironment, files: SourceFiles, is_in_place: bool
    ) -> WarmEnvironment:
        if not self._has_swept:
            self._has_swept = True
            await asyncio.to_thread(remove_leftovers)
        is_deployed = bool(deployed_digest(source.path))
        if is_deployed and (refusal := self._options.cell.refusal()):
            raise EnvironmentBroken(refusal)
        zygote = WarmEnvironment(source, self._options, files, is_in_place=is_in_place and not is_deployed)
        try:
            await zygote.start()
        except BaseException:
            await zygote.stop()
            raise
        described = zygote.description["name"]
        if described != source.name:
            await zygote.stop()
            raise EnvironmentBroken(
                f"{source.path} declares environment {described!r}, the taskset names {source.name!r}"
            )
        extra = {"path": source.path, "isolation": zygote.description["isolation"]}
        log.info("zygote_ready", extra={**extra, "source_digest": files.digest})
        if is_in_place:
            self._newest[source] = files.digest
        return zygote

    def _begin_to_retire(self) -> None:
        if self._retiring is None or self._retiring.done():
            self._retiring = asyncio.create_task(self._retire())

    async def _retire(self) -> None:
        """End unused zygotes and remove what dead ones left, until there are none."""
        while self._zygotes or self._dead:
            await asyncio.sleep(self._look_every_s)
            while self._dead:
                await _forget(self._dead.pop())
            for key in list(self._zygotes):
                await self._end_if_unused(key)

    async def _end_if_unused(self, key: _Key) -> None:
        task, (source, digest) = self._zygotes.get(key), key
        if task is None or not task.done():
            return
        if _is_dead(task):
            del self._zygotes[key]
            await _forget(task)
            return
        zygote, is_newest = task.result(), self._newest.get(source) == digest
        unused_s = asyncio.get_running_loop().time() - zygote.used_at
        if not zygote.has_episodes and unused_s >= (
            self._idle_after_s if is_newest else self._retire_after_s
        ):
            del self._zygotes[key]
            log.info("zygote_retired", extra={"path": source.path, "source_digest": digest})
            await zygote.stop()


def _is_dead(task: "asyncio.Task[WarmEnvironment]") -> bool:
    return task.cancelled() or task.exception() is not None or task.result().dead.done()


async def _forget(dead: "asyncio.Task[WarmEnvironment]") -> None:
    """Remove the folder of a zygote that is dead; one that never started has removed its own."""
    if not dead.cancelled() and dead.exception() is None:
        await dead.result().stop()
