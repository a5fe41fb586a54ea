"""Removes packed sources of environments that nothing refers to any more."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from retention import KEPT_FOR_EVER, SweepOrder, SweepReport, after_from, older_than
from scenario_runner.adapters.source_store import OldSource, SourceStore
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan

_BATCH: Final = 100


class RemoveSources:
    """In the order of their digests, batch by batch. A run that is there keeps what judged it, so that it can
    be graded again; a taskset of a deployed environment keeps that."""

    def __init__(
        self,
        plan: SqlPlan,
        sources: SourceStore,
        age: timedelta | None,
        *,
        now: Callable[[], datetime],
        batch: int = _BATCH,
    ) -> None:
        """age: since a source was packed last, after which it goes; None: never."""
        self._plan = plan
        self._sources = sources
        self._age = age
        self._now = now
        self._batch = batch

    async def __call__(self, order: SweepOrder) -> SweepReport:
        """Raises InvalidRequest, Unavailable."""
        age = order.older_than or self._age
        if age is None:
            return SweepReport(KEPT_FOR_EVER)
        after = after_from(order.after, str) if order.after else ""
        old, following = await self._sources.old(after, self._now() - age, self._batch)
        digests = [one.digest for one in old]
        used = await self._plan.read(lambda unit: unit.old_runs.sources_in_use(digests))
        going = [one for one in old if one.digest not in used]
        if order.apply and going:
            await self._plan.transact(lambda unit: _note(unit, going))  # first: the store keeps no log
            for one in going:
                await self._sources.remove(one.digest)
        return SweepReport(
            older_than(age),
            number=len(going),
            size_bytes=sum(one.size_bytes for one in going),
            oldest=min((one.written_at for one in going), default=None),
            kept=dict(Counter(used.values())),
            next=json.dumps(following) if following else "",
        )


def _note(unit: PlanUnit, gone: Sequence[OldSource]) -> None:
    for one in gone:
        unit.note_source("", one.digest, "packed source removed")
