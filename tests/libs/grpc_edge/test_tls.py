"""gRPC in TLS over a real socket: who is refused, and certificates that are replaced while calls go on."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.certificates import Authority
from tests.libs.grpc_edge.conftest import Tasksets, get

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from grpc_edge.tls import ServerTls
from service_kit.groups import BusSettings, S3Settings, TlsSettings
from service_kit.settings import ServiceSettings, SettingsError, load_settings
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import service_pb2_grpc as rpc
from upcycle.errors import Unavailable
from upcycle.rpc import connect, remote_errors
from upcycle.tls import ClientTls, TlsFilesUnusable, check_pair, current, use


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """What both sides trust."""
    return Authority(tmp_path / "ours")


@pytest.fixture(autouse=True)
def chosen() -> Iterator[None]:
    """Channels of other tests stay as they are."""
    before = current()
    yield
    use(before)


@asynccontextmanager
async def serving(tls: ServerTls) -> AsyncIterator[tuple[GrpcServer, Tasksets]]:
    servicer = Tasksets()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN, tls=tls)
    server.add(rpc.add_TasksetServiceServicer_to_server, servicer)
    await server.start()
    try:
        yield server, servicer
    finally:
        await server.stop()


async def answer(server: GrpcServer, tls: ClientTls | None) -> str:
    """Which run a call on a channel of its own tells of. Raises Unavailable."""
    use(tls)
    async with connect(server.address, default_timeout_s=5) as channel:
        with remote_errors():
            return await get(rpc.TasksetServiceStub(channel), "run-1")


async def refused(stub: "rpc.TasksetServiceAsyncStub") -> None:
    with remote_errors():
        await get(stub, "run-1")


def shown(server: GrpcServer, authority: Authority) -> bytes:
    """The certificate that the server shows to a connection that is opened now."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["h2"])
    host, _, port = server.address.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=host) as sealed,
    ):
        return sealed.getpeercert(binary_form=True) or b""


async def test_a_caller_that_trusts_the_authority_is_answered(authority: Authority) -> None:
    pair = authority.issue("server")
    async with serving(ServerTls(pair.certificate, pair.key)) as (server, _):
        assert await answer(server, ClientTls(authority.ca)) == "run-1"


async def test_no_call_is_made_in_the_clear_or_to_a_server_of_another_authority_or_name(
    authority: Authority, tmp_path: Path
) -> None:
    pair, stranger = authority.issue("server"), Authority(tmp_path / "another")
    elsewhere = authority.issue("elsewhere", "another-host.example")
    async with serving(ServerTls(pair.certificate, pair.key)) as (server, servicer):
        for tls in (None, ClientTls(stranger.ca)):
            with pytest.raises(Unavailable):
                await answer(server, tls)
        assert servicer.calls == 0
    async with serving(ServerTls(elsewhere.certificate, elsewhere.key)) as (server, servicer):
        with pytest.raises(Unavailable):
            await answer(server, ClientTls(authority.ca))
        assert servicer.calls == 0


async def test_mutual_tls_admits_only_callers_with_a_certificate_of_the_authority(
    authority: Authority, tmp_path: Path
) -> None:
    pair, caller = authority.issue("server"), authority.issue("caller", "sampler")
    forged = Authority(tmp_path / "another").issue("caller", "sampler")
    tls = ServerTls(pair.certificate, pair.key, clients_ca=authority.ca)
    async with serving(tls) as (server, servicer):
        for refused in (ClientTls(authority.ca), ClientTls(authority.ca, forged.certificate, forged.key)):
            with pytest.raises(Unavailable):
                await answer(server, refused)
        assert servicer.calls == 0
        assert await answer(server, ClientTls(authority.ca, caller.certificate, caller.key)) == "run-1"


async def test_a_replaced_certificate_is_shown_at_the_next_connection(authority: Authority) -> None:
    first = authority.issue("server")
    before = first.shown
    async with serving(ServerTls(first.certificate, first.key)) as (server, _):
        assert await asyncio.to_thread(shown, server, authority) == before
        after = authority.issue("server").shown
        assert after != before
        assert await asyncio.to_thread(shown, server, authority) == after
        first.key.write_text("half a key")
        assert await asyncio.to_thread(shown, server, authority) == after, "the pair before stays"


async def test_an_open_channel_takes_new_files_and_calls_in_flight_end_as_they_began(
    authority: Authority, tmp_path: Path
) -> None:
    pair, caller = authority.issue("server"), authority.issue("caller", "sampler")
    stranger = Authority(tmp_path / "another")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.ca.read_bytes())
    use(ClientTls(trusted, caller.certificate, caller.key))
    tls = ServerTls(pair.certificate, pair.key, authority.ca)
    async with serving(tls) as (server, servicer), connect(server.address, default_timeout_s=5) as channel:
        stub = rpc.TasksetServiceStub(channel)
        watched = stub.WatchRun(pb.WatchRunRequest(run_id="waits"), timeout=30)
        assert await anext(aiter(watched))
        trusted.write_bytes(stranger.ca.read_bytes())
        with pytest.raises(Unavailable):
            await refused(stub)
        trusted.write_bytes(authority.ca.read_bytes() + stranger.ca.read_bytes())
        with remote_errors():
            assert await get(stub, "run-2") == "run-2"
        trusted.unlink()
        with remote_errors():
            assert await get(stub, "run-3") == "run-3"
        servicer.released.set()
        assert [reply async for reply in watched] == []


async def test_files_that_cannot_be_used_are_named_at_the_start(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("server"), authority.issue("other")
    with pytest.raises(
        TlsFilesUnusable, match=r"server\.pem and .*other\.key are no certificate with its key"
    ):
        async with serving(ServerTls(pair.certificate, other.key)):
            pass
    use(ClientTls(tmp_path / "none.pem"))
    with pytest.raises(TlsFilesUnusable, match=r"none\.pem: No such file or directory"):
        connect("127.0.0.1:1")


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"UPCYCLE_TLS_CERTIFICATE": "a"}, "_CERTIFICATE and UPCYCLE_TLS_KEY go together"),
        ({"UPCYCLE_TLS_CERTIFICATE": "a", "UPCYCLE_TLS_KEY": "b"}, "without UPCYCLE_TLS_CA"),
        ({"UPCYCLE_TLS_CA": "a", "UPCYCLE_TLS_CLIENTS": "true"}, "UPCYCLE_TLS_CLIENTS needs"),
    ],
)
def test_half_of_the_settings_is_refused(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load_settings(ServiceSettings, environ=environ)


def test_the_other_connections_refuse_half_of_their_settings() -> None:
    with pytest.raises(ValueError, match="needs UPCYCLE_BUS_CA"):
        BusSettings(url="tls://127.0.0.1:4222")
    with pytest.raises(ValueError, match="UPCYCLE_S3_CA without UPCYCLE_S3_SECURE"):
        S3Settings(ca=Path("ca.pem"))
    assert ServerTls.of(TlsSettings(ca=Path("ca.pem"))) is None


async def test_an_open_channel_keeps_its_connection_while_files_are_half_written(
    authority: Authority, tmp_path: Path
) -> None:
    pair, caller = authority.issue("server"), authority.issue("caller", "sampler")
    other = Authority(tmp_path / "another").issue("other", "sampler")
    tls = ServerTls(pair.certificate, pair.key, authority.ca)
    whole = {file: file.read_bytes() for file in (authority.ca, caller.certificate, caller.key)}
    use(ClientTls(*whole))
    async with serving(tls) as (server, _), connect(server.address, default_timeout_s=5) as channel:
        stub = rpc.TasksetServiceStub(channel)
        for file, text in whole.items():
            for half in (b"", b"garbage", text[: len(text) // 2], other.key.read_bytes()):
                file.write_bytes(half)
                with remote_errors(f"{file.name} is {half!r}"):
                    assert await get(stub, "run-1") == "run-1"
            file.write_bytes(text)


async def test_a_client_names_what_it_cannot_use_before_it_calls(
    authority: Authority, tmp_path: Path
) -> None:
    caller, other = authority.issue("caller"), authority.issue("other")
    use(ClientTls(authority.ca, caller.certificate, other.key))
    with pytest.raises(
        TlsFilesUnusable, match=r"caller\.pem and .*other\.key are no certificate with its key"
    ):
        connect("127.0.0.1:1")
    (tmp_path / "empty.pem").touch()
    use(ClientTls(tmp_path / "empty.pem"))
    with pytest.raises(TlsFilesUnusable, match=r"empty\.pem holds no certificates"):
        connect("127.0.0.1:1")


async def test_a_server_keeps_what_it_trusts_while_that_file_is_half_written(authority: Authority) -> None:
    pair, caller = authority.issue("server"), authority.issue("caller", "sampler")
    whole = authority.ca.read_bytes()
    tls = ServerTls(pair.certificate, pair.key, clients_ca=authority.ca)
    copy = authority.ca.with_name("copy.pem")
    copy.write_bytes(whole)
    async with serving(tls) as (server, _):
        for half in (b"", b"garbage", whole[: len(whole) // 2]):
            authority.ca.write_bytes(half)
            assert await answer(server, ClientTls(copy, caller.certificate, caller.key)) == "run-1"
            with pytest.raises(Unavailable):
                await answer(server, ClientTls(copy))


def test_a_key_with_a_passphrase_is_refused_and_no_passphrase_is_asked_for(authority: Authority) -> None:
    pair = authority.issue("server")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsFilesUnusable, match=r"server\.key is encrypted"):
        check_pair(pair.certificate, pair.key)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"UPCYCLE_TLS_CERTIFICATE": "a", "UPCYCLE_TLS_KEY": "b"}, "UPCYCLE_TLS_CA is not set"),
        (
            {"UPCYCLE_TLS_CA": "a", "UPCYCLE_TLS_KEY": "b"},
            "UPCYCLE_TLS_CERTIFICATE and UPCYCLE_TLS_KEY go together",
        ),
    ],
)
def test_a_client_with_half_of_the_variables_makes_no_call(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(TlsFilesUnusable, match=problem):
        ClientTls.from_environ(environ)
