"""What this process knows of recorded sessions, so that most requests of one ask no database."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from model_gateway.adapters.sql_sessions import SqlSessions
from model_gateway.domain.sessions import Session

_MAX_KNOWN: Final = 10_000
"""Sessions; beyond it the one that was noted longest ago is forgotten."""
_KNOWN_S: Final = 2.0
"""How old what is known may be. Another replica may open or close a session meanwhile; the transaction that
stores a call reads its row in any case."""


class KnownSessions:
    """Sessions by id; None where the database has none. What this process changes is put here at once."""

    def __init__(self, sessions: SqlSessions) -> None:
        self._sessions = sessions
        self._known: OrderedDict[str, tuple[float, Session | None]] = OrderedDict()

    async def find(self, session_id: str) -> Session | None:
        """The session of this id, whichever key it belongs to. Raises Unavailable."""
        before = self._known.get(session_id)
        if before is not None and asyncio.get_running_loop().time() - before[0] <= _KNOWN_S:
            return before[1]
        session = await self._sessions.find(session_id)
        noted = self._known.get(session_id)
        if noted is not None and noted is not before:
            return noted[1]  # a call or a reward changed it while the database answered
        self._note(session_id, session)
        return session

    def last(self, session_ids: Iterable[str]) -> dict[str, Session | None]:
        """What was known last of these, however long ago; without those of which nothing is."""
        return {one: self._known[one][1] for one in session_ids if one in self._known}

    def put(self, sessions: Iterable[Session]) -> None:
        """Note sessions as a transaction of this process left them."""
        for session in sessions:
            self._note(session.session_id, session)

    def _note(self, session_id: str, session: Session | None) -> None:
        self._known[session_id] = (asyncio.get_running_loop().time(), session)
        self._known.move_to_end(session_id)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
