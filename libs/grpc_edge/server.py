"""A gRPC server as a component: health, reflection, tracing, guard, bounded graceful stop."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, Self, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from grpc_edge.access import Access
from grpc_edge.admission import Admission
from grpc_edge.guard import Guard
from grpc_edge.limits import RpcLimits, server_options
from grpc_edge.status import StatusTable
from grpc_edge.tls import ServerCertificates, ServerTls
from grpc_edge.tracing import tracing
from service_kit.deadlines import deadline
from service_kit.groups import EdgeSettings, TlsSettings
from upcycle.rpc.limits import MAX_MESSAGE_BYTES

T = TypeVar("T")

_BIND_HINT: Final = "is the port taken? choose another grpc_port"


class CannotListen(OSError):
    """The address cannot be bound."""


class _ServiceNames:
    """Stands in for a server while generated code registers a servicer, to learn the service's full name."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self.names += [handler.service_name() for handler in handlers]

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same methods again, for the sync server's fast path."""


class ServedSettings(Protocol):
    """Settings of a service that serves gRPC."""

    @property
    def host(self) -> str: ...

    @property
    def grpc_port(self) -> int: ...

    @property
    def tls(self) -> TlsSettings: ...

    @property
    def edge(self) -> EdgeSettings: ...


class GrpcServer:
    """`GrpcServer(host, port, access).add(add_XServicer_to_server, servicer)`; the service starts it."""

    def __init__(
        self,
        host: str,
        port: int,
        access: Access,
        *,
        tls: ServerTls | None = None,
        limits: RpcLimits | None = None,
        default_deadline_s: float = 60.0,
        grace_s: float = 10.0,
    ) -> None:
        """`port` 0: the system chooses. access: who may call. tls: None: in the clear.
        limits: None: the defaults. `grace_s`: how long calls in flight may go on after stop."""
        self.name = "grpc"
        self._host = host
        self._port = port
        self._tls = tls
        self._grace_s = grace_s
        bounds = limits or RpcLimits.of(EdgeSettings.model_construct())
        self._options = server_options(MAX_MESSAGE_BYTES, bounds)
        self._admission = Admission(bounds)
        self._statuses: dict[str, StatusTable] = {}
        self._guard = Guard(access, default_deadline_s=default_deadline_s, statuses=self._statuses)
        self._registrations: list[Callable[[Any], None]] = []
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()

    @classmethod
    def of(cls, settings: ServedSettings, access: Access) -> Self:
        """As the settings of a service say."""
        tls, limits = ServerTls.of(settings.tls), RpcLimits.of(settings.edge)
        return cls(settings.host, settings.grpc_port, access, tls=tls, limits=limits)

    def add(
        self, register: Callable[[T, grpc.aio.Server], None], servicer: T, statuses: StatusTable | None = None
    ) -> Self:
        """Serve a servicer; `register` is the generated `add_<Service>Servicer_to_server`.

        statuses: of the errors that its methods raise; any other error but Unavailable ends as INTERNAL.
        """
        names = _ServiceNames()
        self._registrations.append(lambda server: register(servicer, server))
        self._registrations[-1](names)
        self._statuses |= dict.fromkeys(names.names, statuses or {})
        return self

    @property
    def port(self) -> int:
        """The port it listens on; the one asked for until it is started."""
        return self._port

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises CannotListen, TlsFilesUnusable."""
        names = _ServiceNames()
        server = grpc.aio.server(
            interceptors=[tracing(), self._admission, self._guard], options=self._options
        )
        for register in self._registrations:
            register(names)
            register(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            [*names.names, health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        try:
            self._port = self._add_port(server)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {self.address}: {error}; {_BIND_HINT}") from error
        for name in names.names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server

    def _add_port(self, server: grpc.aio.Server) -> int:
        if self._tls is None:
            return server.add_insecure_port(self.address)
        return server.add_secure_port(self.address, ServerCertificates(self._tls).credentials())

    async def stop(self) -> None:
        """Tell health watchers, refuse new calls, let calls in flight finish within the grace period."""
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        async with deadline(f"gRPC server on {self.address} to stop", self._grace_s + 5.0):
            await self._server.stop(self._grace_s)
        self._server = None

    def ready(self) -> str | None:
        """It answers from start to stop."""
        return None if self._server is not None else "not listening"
