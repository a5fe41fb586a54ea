"""Answers which runs the registry needs."""

from collections.abc import Mapping, Sequence

from checkpoint_registry.adapters.sql_references import SqlReferences
from retention import Reference


class FindReferences:
    """The registry has nothing to release: what refers to a run are facts about what happened."""

    def __init__(self, rows: SqlReferences) -> None:
        self._rows = rows

    async def __call__(self, runs: Mapping[str, str], release: bool) -> Sequence[Reference]:
        """runs: by id, each with its model or "". Raises Unavailable."""
        return await self._rows.to_runs(runs)
