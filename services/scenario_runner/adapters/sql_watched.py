"""Since when planners have looked for overdue episodes, in one transaction, part of a PlanUnit."""

from datetime import datetime
from functools import cached_property

import sqlalchemy as sa

from scenario_runner.adapters.tables import WATCHED_TIME
from scenario_runner.domain.watched import Watched

_WORK = "overdue"
_WANTED = sa.select(WATCHED_TIME.c.since, WATCHED_TIME.c.until).where(WATCHED_TIME.c.work == _WORK)


class WatchedTime:
    """One row for all planners of the database."""

    def __init__(self, connection: sa.Connection, now: datetime) -> None:
        self._sql = connection
        self._now = now

    @cached_property
    def found(self) -> Watched | None:
        """None before the first look of all."""
        row = self._sql.execute(_WANTED).first()
        return None if row is None else Watched(row.since, row.until)

    def began_at(self, moment: datetime) -> datetime:
        """When a wait that began then could first be looked at."""
        return moment if self.found is None else self.found.began_at(moment, self._now)

    @property
    def is_due(self) -> bool:
        """Whether a look is to be noted."""
        return self.found is None or self.found.at(self._now) != self.found

    def note_look(self) -> None:
        """A planner looks now."""
        if self.found is None:
            self._sql.execute(sa.insert(WATCHED_TIME).values(work=_WORK, since=self._now, until=self._now))
        else:
            noted = self.found.at(self._now)
            mine = WATCHED_TIME.c.work == _WORK
            self._sql.execute(
                sa.update(WATCHED_TIME).where(mine).values(since=noted.since, until=noted.until)
            )
        del self.found
