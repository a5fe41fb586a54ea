"""Steering an engine apart from sampling from it: pauses, weights and pinned policies need a key.

Its supervisor makes one at each start. An episode that reaches the port, or another login of the machine,
samples at most.
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from embedded_engine.http.errors import error_reply

ADMIN_KEY_VARIABLE: Final = "EMBEDDED_ENGINE_ADMIN_KEY"
"""Where the engine finds its key; in its environment, because other logins can read a command line."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminKey:
    """The key of one engine; "": none is needed."""

    def __init__(self, key: str) -> None:
        self._key = key

    def guarding(self, handler: Handler) -> Handler:
        """The same handler, for those who send the key as `Authorization: Bearer <key>`."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if self._key and not hmac.compare_digest(given.encode(), self._key.encode()):
                message = (
                    f"{request.path} steers the engine and needs its key, as `Authorization: Bearer <key>`: "
                    f"its supervisor has it, or the variable {ADMIN_KEY_VARIABLE} of the engine"
                )
                return error_reply(401, "AuthenticationError", message)
            return await handler(request)

        return guarded
