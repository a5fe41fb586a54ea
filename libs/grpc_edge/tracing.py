"""The trace of a call: a span around its handler where spans are recorded, else the ids alone."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from opentelemetry import context as trace_context
from opentelemetry import propagate, trace
from opentelemetry.instrumentation.grpc import aio_server_interceptor

from grpc_edge.open_services import OPEN_SERVICES
from service_kit.unrecorded import Unrecorded, is_recorded

if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]

_IDS: Final = Unrecorded().get_tracer()
_POLLED: Final = ("Get", "List", "Watch", "Explain", "Renew")
"""How the names of methods begin that are called again and again and change nothing but a lease."""


def tracing() -> grpc.aio.ServerInterceptor:
    """As this process records: ask after its telemetry was set up."""
    return aio_server_interceptor(filter_=_is_traced) if is_recorded() else IdsOnly()


class IdsOnly(grpc.aio.ServerInterceptor):
    """The trace that a call brings or begins is current while its handler runs. Nothing is recorded."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """gRPC asks, and runs what it gets, in the one task of the call: its context needs no way back."""
        if _is_traced(handler_call_details):
            brought = propagate.extract(dict(handler_call_details.invocation_metadata))
            span = _IDS.start_span(handler_call_details.method, brought)
            trace_context.attach(trace.set_span_in_context(span))
        return await continuation(handler_call_details)


def _is_traced(details: grpc.HandlerCallDetails) -> bool:
    """A call that brings its trace, or one that changes something and so begins a trace; no polling."""
    if details.method.startswith(OPEN_SERVICES):
        return False
    name = details.method.rpartition("/")[2]
    return "traceparent" in dict(details.invocation_metadata) or not name.startswith(_POLLED)
