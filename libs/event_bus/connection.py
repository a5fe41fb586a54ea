"""The connection to NATS: opened within a bound; ends the process when it is closed for good."""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import nats
from faststream.nats.security import NatsNKey, NatsSecurity, NatsUserPassword
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

from event_bus import keys, metrics
from event_bus.delivery import BusTimings
from event_bus.errors import NotProvisioned, OutdatedDurable
from event_bus.faststream_ext.broker import EventBroker
from event_bus.readers import ProvisionClient, made_here
from event_bus.rights import JETSTREAM_PREFIX, SERVICE_PREFIX, rights_of, service_of
from event_bus.topology import ConsumerSpec, StreamSpec
from service_kit.groups import BusSettings
from upcycle.errors import Unavailable
from upcycle.tls import TlsFilesUnusable, load_pair

_LOG = logging.getLogger(__name__)
EXIT_CONNECTION_CLOSED: Final = 70
_POLL_S: Final = 0.2
_API_TIMEOUT_S: Final = 5.0
_CONNECT_S: Final = 10.0
_CLOSE_S: Final = 10.0
_UNANSWERED: Final = 2


def pings(silence_s: float) -> dict[str, int | float]:
    """Options of a client that takes its connection for lost once pings were unanswered for so long."""
    return {"ping_interval": silence_s / (_UNANSWERED + 1), "max_outstanding_pings": _UNANSWERED}


def filters_of(config: ConsumerConfig | None) -> frozenset[str]:
    """Subjects that a durable reads, as the server tells them: one comes back under its singular name."""
    if config is None:
        return frozenset()
    return frozenset(config.filter_subjects or ([config.filter_subject] if config.filter_subject else []))


class BusConnection:
    """Owns FastStream's broker. `epoch()` grows with each reconnect."""

    def __init__(self, settings: BusSettings, client_name: str, timings: BusTimings) -> None:
        self._settings = settings
        self._client_name = client_name
        self._timings = timings
        self._epoch = 0
        self._closing = False
        self.missing: str | None = None
        """What a start waits for: a stream or durable that is not provisioned."""
        self._last_error: Exception | None = None
        self._on_reconnect: list[Callable[[], None]] = []
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        service = service_of(client_name) if settings.nkey is not None else None
        self.rights = None if service is None else rights_of(service)
        """None: the server does not know this process as one of a service, and bounds it to nothing."""
        self.provision = None if service is None else ProvisionClient(self.client, service)
        self.open_reader = made_here(self.jetstream) if self.provision is None else self.provision.open_reader
        self.broker = EventBroker(
            settings.servers,
            close_s=timings.close_s,
            name=client_name,
            security=_security(settings),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.5,  # seconds
            **pings(timings.silence_s),
            js_options={"prefix": _prefix(is_service=service is not None)},
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            # After the drain of the handlers, which has its own bound.
            graceful_timeout=timings.drain_s + timings.close_s,
            logger=logging.getLogger("event_bus.faststream"),
            log_level=logging.DEBUG,
            apply_types=False,  # the decoder makes the types; nothing is left to validate
        )

    @property
    def is_connected(self) -> bool:
        """Whether NATS answers now."""
        return self._client is not None and self._client.is_connected

    def client(self) -> Client:
        """The client of NATS. Raises Unavailable before `open`."""
        if self._client is None:
            raise Unavailable(f"{self._client_name} is not connected to NATS: start the EventBus first")
        return self._client

    def jetstream(self) -> JetStreamContext:
        """The JetStream API. Raises Unavailable before `open` and after `close`."""
        if self._jetstream is None:
            raise Unavailable(f"{self._client_name} is not connected to NATS: start the EventBus first")
        return self._jetstream

    def on_reconnect(self, call: Callable[[], None]) -> None:
        """Call this after each reconnect."""
        self._on_reconnect.append(call)

    def epoch(self) -> int:
        """Number of reconnects so far."""
        return self._epoch

    async def open(self) -> None:
        """Connect within the bound. Raises Unavailable, BusKeyRefused."""
        _check_key(self._settings)
        try:
            async with asyncio.timeout(self._timings.connect_s):
                await self.broker.connect()
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(
                f"no NATS at {self._settings.url} within {self._timings.connect_s:g} s "
                f"({self._last_error or error!r}): is nats-server up, is UPCYCLE_BUS_URL right?"
            ) from error
        self._client = self.broker.connection
        prefix = _prefix(is_service=self.provision is not None)
        self._jetstream = self._client.jetstream(prefix=prefix, timeout=_API_TIMEOUT_S)

    async def await_provisioned(
        self, streams: Iterable[StreamSpec], durables: Mapping[ConsumerSpec, frozenset[str]]
    ) -> None:
        """Wait until everything that this process binds to exists and is what it expects.

        durables: with the subjects that each must read. Raises NotProvisioned, OutdatedDurable.
        """
        deadline = time.monotonic() + self._timings.connect_s
        wanted: list[tuple[str, str | None, frozenset[str]]]
        wanted = [(spec.name, None, frozenset()) for spec in streams]
        wanted += [(spec.stream, spec.durable, subjects) for spec, subjects in durables.items()]
        for stream, durable, subjects in wanted:
            while (trouble := await self._trouble_with(stream, durable, subjects)) is not None:
                self.missing = str(trouble)
                if time.monotonic() > deadline:
                    raise trouble
                await asyncio.sleep(_POLL_S)
        self.missing = None

    async def _trouble_with(
        self, stream: str, durable: str | None, subjects: frozenset[str]
    ) -> NotProvisioned | None:
        what = f"stream {stream}" if durable is None else f"durable {durable} of stream {stream}"
        try:
            if durable is None:
                await self.jetstream().stream_info(stream)
                return None
            config = (await self.jetstream().consumer_info(stream, durable)).config
        except NotFoundError:
            return self._not_provisioned(what)
        except NatsError as error:  # JetStream still starts; the caller's deadline decides
            _LOG.warning("jetstream_not_ready", extra={"stream": stream, "error": repr(error)})
            return self._not_provisioned(what)
        read = filters_of(config)
        if not read >= subjects:
            return OutdatedDurable(what, have=read, want=subjects)
        if more := sorted(read - subjects):  # this process is one version behind
            _LOG.warning("durable_reads_more", extra={"durable": durable, "unknown_here": more})
        return None

    def _not_provisioned(self, what: str) -> NotProvisioned:
        return NotProvisioned(f"{what} does not exist at {self._settings.url}: run upcycle-provision")

    async def close(self) -> None:
        """Disconnect; what NATS answers is logged, not raised."""
        self._closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.broker.stop()
        self._jetstream = None

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        level = logging.DEBUG if self._closing else logging.WARNING
        _LOG.log(level, "nats_error", extra={"client": self._client_name, "error": repr(error)})

    async def _on_disconnected(self) -> None:
        if not self._closing:
            _LOG.warning("nats_disconnected", extra={"client": self._client_name})

    async def _on_reconnected(self) -> None:
        self._epoch += 1
        metrics.RECONNECTED.inc()
        for call in self._on_reconnect:
            call()
        _LOG.info("nats_reconnected", extra={"client": self._client_name})

    async def _on_closed(self) -> None:
        if self._closing:
            return
        extra = {"client": self._client_name, "exit_status": EXIT_CONNECTION_CLOSED}
        _LOG.critical("nats_connection_closed", extra=extra)
        logging.shutdown()
        # The client will not reconnect, so a drain could not answer any message: start again from outside.
        os._exit(EXIT_CONNECTION_CLOSED)


def _login(settings: BusSettings) -> tuple[str, str] | None:
    """User and password; None where the server asks for no login."""
    if settings.user is None:
        return None
    return settings.user, settings.password.get_secret_value() if settings.password else ""


def _prefix(*, is_service: bool) -> str:
    """Where JetStream is asked: a service with a key has what it may ask under another name."""
    return SERVICE_PREFIX if is_service else JETSTREAM_PREFIX


def jetstream_of_service(client: Client, settings: BusSettings, timeout_s: float) -> JetStreamContext:
    """JetStream for a plain client of a service."""
    prefix = _prefix(is_service=settings.nkey is not None)
    return client.jetstream(prefix=prefix, timeout=timeout_s)


def _security(settings: BusSettings) -> NatsSecurity:
    """How FastStream's client says who it is, and in what it says it."""
    tls: dict[str, Any] = {"ssl_context": tls_of(settings), "tls_handshake_first": settings.ca is not None}
    if settings.nkey is not None:
        return NatsNKey.from_file(str(settings.nkey), **tls)
    login = _login(settings)
    return NatsSecurity(**tls) if login is None else NatsUserPassword(*login, **tls)


def _check_key(settings: BusSettings) -> None:
    if settings.nkey is not None:
        keys.public_key(settings.nkey)


def tls_of(settings: BusSettings) -> ssl.SSLContext | None:
    """None: in the clear. Raises Unavailable for files that cannot be used.

    Connections begin in TLS: a client that waits for what the server says first, in the clear, could be told
    by anybody on the way that this server speaks no TLS.
    """
    if settings.ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=str(settings.ca))
        if settings.certificate is not None and settings.key is not None:
            load_pair(context, settings.certificate, settings.key)
    except (OSError, ssl.SSLError, TlsFilesUnusable) as error:
        named = [str(file) for file in (settings.ca, settings.certificate, settings.key) if file is not None]
        raise Unavailable(f"no TLS to NATS with {', '.join(named)}: {error}") from error
    return context


async def plain_client(settings: BusSettings, name: str, **options: Any) -> Client:
    """A client without handlers, which connects again for as long as it is open. The caller sets a bound.
    Raises BusKeyRefused."""
    _check_key(settings)
    user, password = _login(settings) or (None, None)
    return await nats.connect(
        settings.servers,
        name=name,
        user=user,
        password=password,
        nkeys_seed=None if settings.nkey is None else str(settings.nkey),
        tls=tls_of(settings),
        tls_handshake_first=settings.ca is not None,
        max_reconnect_attempts=-1,
        error_cb=_quietly,
        **pings(BusTimings().silence_s),
        **options,
    )


@asynccontextmanager
async def connected(settings: BusSettings, name: str) -> AsyncIterator[Client]:
    """A plain client for a few questions. NATS's errors, no answer among them, leave the block as
    Unavailable.
    """
    try:
        async with asyncio.timeout(_CONNECT_S):
            client = await plain_client(settings, name, reconnect_time_wait=0.2)
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(
            f"no NATS at {settings.url} within {_CONNECT_S:g} s ({error!r}): "
            "is nats-server up, are UPCYCLE_BUS_URL and _NKEY, or _USER and _PASSWORD, right?"
        ) from error
    try:
        yield client
    except NotFoundError as error:
        raise Unavailable(
            f"{settings.url} is not provisioned ({error.description}): run upcycle-provision"
        ) from error
    except NatsError as error:
        raise Unavailable(f"{settings.url} stopped answering: {error!r}") from error
    finally:
        await client.close()


async def _quietly(error: Exception) -> None:
    _LOG.debug("nats_error", extra={"error": repr(error)})
