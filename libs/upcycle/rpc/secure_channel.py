"""A channel in TLS that takes new certificates without a restart: when a file changed, the next call opens a
connection with what it holds now. Calls in flight end on the connection that they began on.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio

from upcycle.tls import ClientTls, Stamp, TlsFilesUnusable, check_pair, read, read_ca, stamp_of

log = logging.getLogger(__name__)

_OLD_CALLS_S: Final = 3600.0
"""How long calls may go on over a connection whose certificates were replaced."""


class SecureChannel(grpc.aio.Channel):
    """As `grpc.aio.secure_channel`. Raises TlsFilesUnusable when it is made, not later: files that cannot be
    used while it is open are logged, and the connection stays as it is."""

    def __init__(
        self,
        address: str,
        tls: ClientTls,
        options: Sequence[tuple[str, Any]],
        interceptors: Sequence[grpc.aio.ClientInterceptor],
    ) -> None:
        self._tls = tls
        self._address = address
        self._options = options
        self._interceptors = interceptors
        self._stamp: Stamp = stamp_of(tls.files)
        self._channel: grpc.aio.Channel = self._open()
        self._closing: set[asyncio.Task[None]] = set()
        self.generation = 0
        """How often the files were replaced."""

    def _open(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(
            self._address, credentials_of(self._tls), options=self._options, interceptors=self._interceptors
        )

    def current(self) -> grpc.aio.Channel:
        """The connection for a call that begins now."""
        try:
            stamp = stamp_of(self._tls.files)
            if stamp == self._stamp:
                return self._channel
            fresh = self._open()
        except TlsFilesUnusable as error:
            log.warning("tls_files_unusable", extra={"error": str(error)})
            return self._channel
        closing = asyncio.ensure_future(self._channel.close(grace=_OLD_CALLS_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._stamp, self._channel, self.generation = stamp, fresh, self.generation + 1
        return fresh

    async def close(self, grace: float | None = None) -> None:
        """Calls on replaced connections are cancelled."""
        for task in tuple(self._closing):
            task.cancel()
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Of the connection for new calls."""
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Of the connection for new calls."""
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Of the connection for new calls."""
        await self.current().channel_ready()

    def unary_unary(self, *method: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _Method(self, lambda channel: channel.unary_unary(*method, **options))

    def unary_stream(self, *method: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _Method(self, lambda channel: channel.unary_stream(*method, **options))

    def stream_unary(self, *method: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _Method(self, lambda channel: channel.stream_unary(*method, **options))

    def stream_stream(self, *method: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _Method(self, lambda channel: channel.stream_stream(*method, **options))


class _Method:
    """Stands in a stub for one of its methods, on whatever connection the channel has."""

    def __init__(self, channel: SecureChannel, bind: Callable[[grpc.aio.Channel], Any]) -> None:
        self._channel = channel
        self._bind = bind
        self._bound = bind(channel.current())
        self._generation = channel.generation

    def __call__(self, *request: Any, **options: Any) -> Any:
        current = self._channel.current()
        if self._generation != self._channel.generation:
            self._bound, self._generation = self._bind(current), self._channel.generation
        return self._bound(*request, **options)


def credentials_of(tls: ClientTls) -> grpc.ChannelCredentials:
    """Raises TlsFilesUnusable."""
    if tls.certificate is None or tls.key is None:
        return grpc.ssl_channel_credentials(read_ca(tls.ca))
    check_pair(tls.certificate, tls.key)
    return grpc.ssl_channel_credentials(read_ca(tls.ca), read(tls.key), read(tls.certificate))
