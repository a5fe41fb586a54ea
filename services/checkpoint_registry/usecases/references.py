"""Answers which runs the registry needs, as long as it reads what was published."""

from collections.abc import Callable, Sequence

from checkpoint_registry.adapters.sql_references import SqlReferences
from retention import Reference
from upcycle.errors import Unavailable


class FindReferences:
    """The registry has nothing to release: what refers to a run are facts about what happened."""

    def __init__(self, rows: SqlReferences, *, unread: Callable[[], str | None]) -> None:
        """unread: why facts are not read now; None: they are."""
        self._rows = rows
        self._unread = unread

    async def __call__(self, run_ids: Sequence[str], release: bool) -> Sequence[Reference]:
        """Raises Unavailable, also while a fact that refers to a run may be unread."""
        why = self._unread()
        if why is not None:
            raise Unavailable(f"checkpoint_registry may not know all checkpoints, its bus: {why}")
        return await self._rows.to_runs(run_ids)
