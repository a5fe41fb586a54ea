"""Sessions of one served environment: those connected, and those parked with a task."""

import asyncio
from collections.abc import Callable

from upcycle.environment.channel.frames import INVALID_REQUEST, SERVER_ERROR, ChannelError
from upcycle.environment.channel.session import PARKED_S, Session


class Sessions:
    """new: makes a session. parked_s: how long a task waits for its client; its session is closed then.
    max_live: of sessions that share a process, and would see each other's state, one at a time is served."""

    def __init__(
        self, new: Callable[[], Session], *, parked_s: float = PARKED_S, max_live: int | None = None
    ) -> None:
        self._new = new
        self._max_live = max_live
        self._parked_s = parked_s
        self._live: dict[str, Session] = {}
        self._parked: dict[str, tuple[Session, asyncio.TimerHandle]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, session_id: str | None) -> Session:
        """A new session, or the parked one of that id. Raises ChannelError for an unknown or live id."""
        if session_id is None:
            self._refuse_if_full()
            session = self._new()
        elif session_id in self._parked:
            session, lapse = self._parked.pop(session_id)
            lapse.cancel()
        elif session_id in self._live:
            raise ChannelError(INVALID_REQUEST, f"session {session_id!r} is in use by another connection")
        else:
            raise ChannelError(
                INVALID_REQUEST,
                f"session {session_id!r} is unknown: a session without a task ends with its connection, "
                f"one with a task {self._parked_s:g} s after it",
            )
        self._live[session.session_id] = session
        return session

    def known(self, session_id: str) -> Session:
        """A session that is connected or parked. Raises ChannelError."""
        if session_id in self._live:
            return self._live[session_id]
        if session_id in self._parked:
            return self._parked[session_id][0]
        raise ChannelError(INVALID_REQUEST, f"session {session_id!r} is unknown or over")

    def resume_only(self) -> Session:
        """The one parked session, for a client that lost its id. Raises ChannelError unless there is exactly
        one.
        """
        if len(self._parked) != 1:
            raise ChannelError(INVALID_REQUEST, f"no task in progress ({len(self._parked)} parked)")
        return self.open(next(iter(self._parked)))

    async def release(self, session: Session) -> None:
        """The connection was closed: abort a running grade, and keep a started task for a reconnect."""
        await session.interrupt()
        self._live.pop(session.session_id, None)
        if not session.has_task:
            await session.close()
            return
        lapse = asyncio.get_running_loop().call_later(self._parked_s, self._lapse, session.session_id)
        self._parked[session.session_id] = (session, lapse)

    def forget(self, session: Session) -> None:
        """Remove a session that the client replaced by another one."""
        self._live.pop(session.session_id, None)
        self._close(session)

    async def close(self) -> None:
        """End every session, at the end of the server."""
        parked = [session for session, _ in self._parked.values()]
        for _, lapse in self._parked.values():
            lapse.cancel()
        every = [*self._live.values(), *parked]
        self._live.clear()
        self._parked.clear()
        await asyncio.gather(*(session.close() for session in every), *self._closing, return_exceptions=True)

    def _refuse_if_full(self) -> None:
        num_known = len(self._live) + len(self._parked)
        if self._max_live is not None and num_known >= self._max_live:
            raise ChannelError(
                SERVER_ERROR,
                f"{num_known} session is served, limit {self._max_live}: this system cannot give each a "
                "process of its own, and they would see each other's state; close the other connection",
                "too_many_sessions",
            )

    def _lapse(self, session_id: str) -> None:
        session, _ = self._parked.pop(session_id)
        self._close(session)

    def _close(self, session: Session) -> None:
        closing = asyncio.ensure_future(session.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
