"""Records versions and candidates whose facts the stream lost before the registry had read them.

The stream of facts may be made anew, or remove at a bound what was not read. What the trainer announced
lies beside the files of each version, too; a void step's version has nothing there.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.domain.errors import UnknownModel, VersionConflict
from checkpoint_registry.usecases.gating import RunGate
from identities.objects import PolicyFolder
from service_kit.loops import one_piece

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lacking:
    """Of one kind of fact: what is recorded, as far as this process knows, and what was missing at the last
    look. A fact that is on its way arrives between two looks."""

    known: frozenset[PolicyFolder] = frozenset()
    missing: frozenset[PolicyFolder] = frozenset()

    async def twice(
        self,
        announced: frozenset[PolicyFolder],
        lacking: Callable[[Collection[PolicyFolder]], Awaitable[set[PolicyFolder]]],
    ) -> list[PolicyFolder]:
        """Announced, and missing at two looks in a row; oldest first."""
        missing = frozenset(await lacking(announced - self.known))
        again, self.missing = missing & self.missing, missing
        self.known = announced - missing
        return sorted(again)


@dataclass(slots=True)
class TakeLostFacts:
    """One look after the other. wake_gate: models that have a new candidate."""

    announced: KeptAnnouncements
    versions: SqlVersionStore
    gate: RunGate
    wake_gate: Callable[[list[str]], None]
    _published: _Lacking = field(default_factory=_Lacking)
    _saved: _Lacking = field(default_factory=_Lacking)

    async def look(self) -> None:
        """Record what was announced and is missing at the second look in a row. Raises Unavailable."""
        announced = await self.announced.all()
        published = await self._published.twice(announced.published, self.versions.unpublished)
        saved = await self._saved.twice(announced.saved, self.versions.unsaved)
        await self._each(published, self._record_version)
        await self._each(saved, self._record_candidate)

    async def _each(
        self, folders: Iterable[PolicyFolder], record: Callable[[PolicyFolder], Awaitable[bool]]
    ) -> None:
        for folder in folders:
            with one_piece(f"a lost fact about {folder.model!r} v{folder.version}"):
                try:
                    if await record(folder):
                        extra = {"model": folder.model, "version": folder.version}
                        log.warning("lost_fact_recorded", extra=extra)
                except (UnknownModel, VersionConflict) as error:
                    log.error("lost_fact_refused", extra={"error": str(error)})

    async def _record_version(self, folder: PolicyFolder) -> bool:
        published = await self.announced.published(folder)
        return published is not None and await self.versions.record(published)

    async def _record_candidate(self, folder: PolicyFolder) -> bool:
        found = await self.announced.saved(folder)
        if found is None:
            return False
        candidate, keeps_head = found
        is_new = await self.gate.record(candidate, "", keeps_head=keeps_head)
        self.wake_gate([folder.model])
        return is_new
