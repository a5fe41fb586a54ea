"""Server and client of the edge against each other, over a real socket, with a real contract."""

import asyncio

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr
from tests.libs.grpc_edge.conftest import KEY, SERVICE, Tasksets, get
from tests.support.waiting import until

from grpc_edge import GrpcServer, Peer
from grpc_edge.access import OPEN, Access
from grpc_edge.guard import unknown_field
from grpc_edge.server import CannotListen
from service_kit.groups import AccessSettings
from service_kit.unrecorded import Unrecorded
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import service_pb2_grpc as rpc
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.errors import Unavailable
from upcycle.rpc import (
    REFUSALS,
    CallTimedOut,
    RemoteConflict,
    RemoteDenied,
    RemoteError,
    RemoteNotFound,
    RemoteRefused,
    connect,
    peer_errors,
    remote_errors,
)


@pytest.mark.parametrize(
    ("run_id", "kind", "code", "reason"),
    [
        ("missing", RemoteNotFound, grpc.StatusCode.NOT_FOUND, "UNKNOWN_RUN"),
        ("moved", RemoteConflict, grpc.StatusCode.ABORTED, "RUN_MOVED"),
        ("gate", RemoteRefused, grpc.StatusCode.FAILED_PRECONDITION, "HELD_OUT_GATE_NOT_PASSED"),
        ("bug", RemoteError, grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
)
async def test_a_domain_error_arrives_as_a_class_with_status_and_reason(
    stub: "rpc.TasksetServiceAsyncStub",
    run_id: str,
    kind: type[RemoteError],
    code: grpc.StatusCode,
    reason: str,
) -> None:
    with pytest.raises(kind) as caught:
        await get(stub, run_id)

    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert str(caught.value).startswith(f"get {run_id}: {code.name} {reason}: ")


async def test_a_deadline_that_passed_inside_the_service_arrives_as_a_timed_out_call(
    stub: "rpc.TasksetServiceAsyncStub",
) -> None:
    with pytest.raises(
        CallTimedOut, match="get nested-timeout: DEADLINE_EXCEEDED DEADLINE_EXCEEDED: "
    ) as caught:
        await get(stub, "nested-timeout")
    assert isinstance(caught.value, Unavailable)


async def test_the_message_says_what_the_domain_said(stub: "rpc.TasksetServiceAsyncStub") -> None:
    with pytest.raises(RemoteNotFound) as caught:
        await get(stub, "missing")
    assert caught.value.message == "run 'missing' is not known; `upcycle runs` lists them"

    with pytest.raises(RemoteRefused) as cut:
        await get(stub, "verbose")
    assert len(cut.value.message) == 2001


async def test_an_unexpected_error_leaks_nothing_but_an_id_that_the_log_has(
    stub: "rpc.TasksetServiceAsyncStub", caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RemoteError) as caught:
        await get(stub, "bug")

    (record,) = [r for r in caplog.records if r.getMessage() == "unexpected_error_in_rpc"]
    assert "hunter2" not in str(caught.value)
    assert vars(record)["error_id"] in caught.value.message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


async def test_a_servicer_without_a_table_is_guarded_too(stub: "rpc.TasksetServiceAsyncStub") -> None:
    with pytest.raises(RemoteError, match=r"INTERNAL.*internal error [0-9a-f]{12}"), remote_errors("list"):
        await stub.ListRuns(pb.ListRunsRequest())


async def test_an_error_in_the_middle_of_a_stream_is_typed(stub: "rpc.TasksetServiceAsyncStub") -> None:
    seen: list[str] = []

    with pytest.raises(RemoteConflict):
        await _watch(stub, "moved", seen)
    assert seen == ["moved"]


async def _watch(stub: "rpc.TasksetServiceAsyncStub", run_id: str, seen: list[str]) -> None:
    with remote_errors("watch"):
        async for response in stub.WatchRun(pb.WatchRunRequest(run_id=run_id)):
            seen.append(response.run.run_id)


async def test_a_call_without_a_deadline_gets_the_servers(server: GrpcServer) -> None:
    async with grpc.aio.insecure_channel(server.address) as bare:
        with (
            pytest.raises(CallTimedOut, match=r"DEFAULT_DEADLINE: .*default of 0.2 s passed"),
            remote_errors("get"),
        ):
            await rpc.TasksetServiceStub(bare).GetRun(pb.GetRunRequest(run_id="slow"))


async def test_the_callers_deadline_goes_first(stub: "rpc.TasksetServiceAsyncStub") -> None:
    assert await get(stub, "slow") == "slow"  # 0.6 s: past the server's default, within the client's

    with pytest.raises(CallTimedOut, match="DEADLINE_EXCEEDED"), remote_errors("get"):
        await stub.GetRun(pb.GetRunRequest(run_id="slow"), timeout=0.1)


async def test_a_field_of_the_future_is_refused_and_named(stub: "rpc.TasksetServiceAsyncStub") -> None:
    newer = pb.GetRunRequest.FromString(pb.GetRunRequest(run_id="ok").SerializeToString() + b"\xd2\x29\x01x")

    with pytest.raises(RemoteRefused, match=r"field 666 in GetRunRequest") as caught, remote_errors("get"):
        await stub.GetRun(newer)
    assert caught.value.reason == "UNKNOWN_FIELD"


def test_an_unknown_field_is_found_at_any_depth() -> None:
    inner = taskset_pb2.Run.FromString(b"\xd2\x29\x01x")
    message: Message = pb.WatchRunResponse(run=inner)

    assert unknown_field(message) == "field 666 in WatchRunResponse.run"
    assert unknown_field(pb.WatchRunResponse(run=taskset_pb2.Run(run_id="x"))) is None


async def test_large_messages_pass_and_larger_ones_are_refused(stub: "rpc.TasksetServiceAsyncStub") -> None:
    large = "x" * (20 * 1024 * 1024)
    assert await get(stub, large) == large

    with pytest.raises(RemoteRefused, match="RESOURCE_EXHAUSTED"):
        await get(stub, "x" * (33 * 1024 * 1024))


@pytest.mark.parametrize(
    ("key", "allowed"), [(KEY, True), ("wrong", False), (KEY + "x", False), (None, False)]
)
async def test_an_api_key_opens_the_services_and_nothing_else_does(
    tasksets: Tasksets, key: str | None, allowed: bool
) -> None:
    server = GrpcServer(
        "127.0.0.1",
        0,
        Access.of(AccessSettings(open=False, operator_key=SecretStr(f"older-key-{KEY},{KEY}"))),
    )
    server.add(rpc.add_TasksetServiceServicer_to_server, tasksets)
    await server.start()
    async with connect(server.address, api_key=key) as channel:
        stub = rpc.TasksetServiceStub(channel)
        if allowed:
            assert await get(stub, "ok") == "ok"
        else:
            with pytest.raises(RemoteDenied, match="authorization: Bearer"):
                await get(stub, "ok")
            with pytest.raises(RemoteDenied):
                await _watch(stub, "ok", [])
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
    assert tasksets.calls == int(allowed)
    await server.stop()


async def test_health_is_reported_per_service_and_during_shutdown(server: GrpcServer) -> None:
    async with connect(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stop = asyncio.create_task(server.stop())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await stop


async def test_reflection_lists_what_is_served(server: GrpcServer) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        call.cancel()
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_the_trace_of_the_caller_reaches_the_handler(server: GrpcServer, tasksets: Tasksets) -> None:
    trace.set_tracer_provider(TracerProvider())
    tracer = trace.get_tracer("test")
    async with connect(server.address) as channel:
        with tracer.start_as_current_span("caller") as span:
            await get(rpc.TasksetServiceStub(channel), "ok")
    assert tasksets.trace_ids == [span.get_span_context().trace_id]


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without an exporter."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", Unrecorded())


async def test_the_trace_of_the_caller_reaches_the_handler_where_nothing_is_recorded(
    unrecorded: None, server: GrpcServer, tasksets: Tasksets
) -> None:
    caller = trace.NonRecordingSpan(trace.SpanContext(7, 8, is_remote=False))
    async with connect(server.address) as channel:
        stub = rpc.TasksetServiceStub(channel)
        with trace.use_span(caller):
            await get(stub, "ok")
        await get(stub, "ok")  # a poll belongs to no trace, also not to that of the call before it
    assert tasksets.trace_ids == [7, 0]


async def test_a_call_that_changes_something_begins_a_trace_where_nothing_is_recorded(
    unrecorded: None, server: GrpcServer, tasksets: Tasksets
) -> None:
    async with connect(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await rpc.TasksetServiceStub(channel).StopRun(pb.StopRunRequest(), timeout=30)
    assert tasksets.trace_ids != [0]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Everything that ends as a span from now on; a process can set its global provider only once."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


async def test_calls_that_poll_make_no_spans(spans: InMemorySpanExporter, server: GrpcServer) -> None:
    async with connect(server.address) as channel:
        stub = rpc.TasksetServiceStub(channel)
        await get(stub, "ok")
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.CancelRun(pb.CancelRunRequest(run_id="r"))
        await until(lambda: bool(spans.get_finished_spans()))  # the reply leaves before the span ends
    (span,) = spans.get_finished_spans()
    assert (span.kind, span.name.rpartition("/")[2]) == (trace.SpanKind.SERVER, "CancelRun")


async def test_what_is_unavailable_everywhere_needs_no_entry_in_a_table(server: GrpcServer) -> None:
    async with connect(server.address) as channel:
        stub = rpc.TasksetServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as away:
            await stub.PauseRun(pb.PauseRunRequest())
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await stub.StopRun(pb.StopRunRequest())
        with pytest.raises(Unavailable, match="STORE_FULL: database planner is full"), remote_errors("stop"):
            await stub.StopRun(pb.StopRunRequest())
    assert (away.value.code(), full.value.code()) == (grpc.StatusCode.UNAVAILABLE,) * 2


@pytest.mark.parametrize(
    ("run_id", "answers", "raised"),
    [
        ("bug", REFUSALS, Unavailable),
        ("missing", REFUSALS, RemoteNotFound),
        ("gate", REFUSALS, RemoteRefused),
        ("gate", (RemoteNotFound,), Unavailable),
        ("missing", (), Unavailable),
    ],
)
async def test_between_services_only_an_answer_about_the_request_is_an_answer(
    stub: "rpc.TasksetServiceAsyncStub",
    run_id: str,
    answers: tuple[type[RemoteError], ...],
    raised: type[Exception],
) -> None:
    words = "internal error" if run_id == "bug" else ""
    with (
        pytest.raises(raised, match=f"the planner: .*{words}") as caught,
        peer_errors("the planner", answers),
    ):
        await stub.GetRun(pb.GetRunRequest(run_id=run_id))
    assert type(caught.value) is raised


async def test_a_taken_port_is_said_with_a_way_out(server: GrpcServer) -> None:
    second = GrpcServer("127.0.0.1", server.port, OPEN)

    with pytest.raises(CannotListen, match=r"cannot listen on 127.0.0.1:\d+.*choose another grpc_port"):
        await second.start()


async def test_a_peer_starts_and_is_ready_before_its_server_is() -> None:
    peer = Peer("registry", "127.0.0.1:1")
    await peer.start()

    assert peer.ready() is None
    await peer.stop()


def test_errors_of_other_kinds_pass_through() -> None:
    with pytest.raises(KeyError), remote_errors("anything"):
        raise KeyError("x")
