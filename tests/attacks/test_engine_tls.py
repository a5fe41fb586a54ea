"""A listener between engines and those who sample: it reads nothing, and stands in for no engine."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.certificates import Authority, Pair
from tests.libs.engine_client.engine_double import generated, scripted
from tests.services.policy_engine.policies import make_policy
from tests.support.waiting import until

from blob_store import BlobRef
from engine_client import EngineClient, EngineState, EngineUnavailable, SamplingParams
from model_gateway.adapters.engine_http import HttpEngines
from model_gateway.domain.errors import EngineLost
from model_gateway.domain.routing import EngineRoute
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineCertificate, EngineOptions
from policy_engine.adapters.engine_process import AttachedEngine, EngineProcess
from policy_engine.domain import EngineBroken, EngineTarget, Policy
from service_kit.port_certificate import PortCertificate
from upcycle.tls import ClientTls, current, use

MODEL = "m"


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
async def engine(folder: Path, certificate: EngineCertificate) -> AsyncIterator[str]:
    """A real process, as a supervisor starts it; its address."""
    options = EngineOptions(MODEL, certificate=certificate)
    log = folder / "engine.log"
    host = EngineProcess(EmbeddedKind(options), "127.0.0.1", 0, start_s=120.0, log_path=log)
    directory = make_policy(folder / "policy", 1)
    try:
        await host.start(served(directory))
        yield host.base_url
    finally:
        await host.stop()


async def sampled(url: str, tls: ClientTls | None) -> str:
    """How it went for a sampler and for the gateway: the same. tls: what this process trusts and shows."""
    use(tls)
    route = EngineRoute("e", url, MODEL, True, 0, "", frozenset(), EngineState.READY, "1")
    gateway = HttpEngines(idle_timeout_s=20.0, only_https=True)
    await gateway.start()
    try:
        async with EngineClient(url, only_https=True) as client:
            try:
                said = await client.weight_version()
            except EngineUnavailable as error:
                with pytest.raises(EngineLost):
                    await gateway.post(route, "/v1/completions", b"{}", {}, 20.0)
                return str(error)
        reply = await gateway.post(route, "/v1/completions", b"{}", {}, 20.0)
        assert reply.status == 400, await reply.read()
        reply.close()
        return said
    finally:
        await gateway.stop()


def asking(authority: Authority, pair: Pair | None = None) -> ClientTls:
    return ClientTls(authority.ca) if pair is None else ClientTls(authority.ca, pair.certificate, pair.key)


async def test_an_engine_in_tls_answers_no_request_in_the_clear(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("engine")
    use(asking(authority))
    async with engine(tmp_path, EngineCertificate(pair.certificate, pair.key)) as url:
        assert url.startswith("https://")
        assert "default" in await sampled(url, asking(authority))
        assert "certificate verify failed" in await sampled(url, asking(Authority(tmp_path / "another")))
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(url.replace("https", "http") + "/health")


async def test_with_mutual_tls_a_caller_without_a_certificate_does_not_sample(
    authority: Authority, tmp_path: Path
) -> None:
    pair, caller = authority.issue("engine"), authority.issue("caller")
    stranger = Authority(tmp_path / "another").issue("stranger")
    use(asking(authority, caller))
    certificate = EngineCertificate(pair.certificate, pair.key, clients_ca=authority.ca)
    async with engine(tmp_path, certificate) as url:
        assert "default" in await sampled(url, asking(authority, caller))
        for refused in (asking(authority), asking(authority, stranger)):
            assert "cannot be reached" in await sampled(url, refused)


async def test_a_replaced_certificate_is_shown_without_a_restart(
    authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("engine")
    use(asking(authority))
    async with engine(tmp_path, EngineCertificate(pair.certificate, pair.key)) as url:
        other = Authority(authority.folder)  # another authority, into the same files
        other.issue("engine")

        async def trusted() -> bool:
            use(asking(other))
            async with EngineClient(url, only_https=True) as client:
                return await client.health(timeout_s=20.0)

        await until(trusted, "the engine shows the certificate of the new authority", timeout_s=60.0)
        assert "default" in await sampled(url, asking(other))


async def test_requests_go_on_while_files_of_the_caller_are_half_written(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair, caller = authority.issue("engine"), authority.issue("caller")
    use(asking(authority, caller))
    shown = PortCertificate(pair.certificate, pair.key, authority.ca).context
    async with serving(shown, b'{"weight_version": "default"}') as url, EngineClient(url) as client:
        assert await client.weight_version() == "default"
        for file in (caller.certificate, caller.key, authority.ca):
            whole = file.read_bytes()
            caplog.clear()
            file.write_bytes(whole[:100])
            for _ in range(20):
                assert await client.weight_version() == "default"
            said = [one.__dict__["error"] for one in caplog.records if one.message == "tls_files_unusable"]
            assert len(said) == 1, said
            assert str(file) in said[0]
            file.unlink()
            assert await client.weight_version() == "default"
            file.write_bytes(whole)
            assert await client.weight_version() == "default"


async def test_where_engines_speak_tls_none_is_sampled_in_the_clear(authority: Authority) -> None:
    """A lease that names http is one of another deployment, or of an attacker."""
    received = asyncio.Event()

    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set()
        writer.close()

    async with await asyncio.start_server(listener, "127.0.0.1", 0, family=socket.AF_INET) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert "UPCYCLE_TLS_ENGINES" in await sampled(url, asking(authority))
    assert not received.is_set()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_of_an_engine_leads_no_request_into_the_clear(
    authority: Authority, status: int
) -> None:
    pair = authority.issue("engine")
    use(asking(authority))
    in_clear = scripted({"/inference/v1/generate": lambda _: generated([7], [("3", 0, 1)])})
    async with in_clear as (to, seen):
        shown = PortCertificate(pair.certificate, pair.key).context
        head = f"HTTP/1.1 {status} x\r\nlocation: {to}/inference/v1/generate"
        async with serving(shown, b"", head=head) as url, EngineClient(url, only_https=True) as client:
            with pytest.raises(EngineUnavailable, match=f"redirects POST .* to '{to}"):
                await client.generate(MODEL, [1, 2], SamplingParams(max_tokens=1))
            assert not await client.health()
    assert seen == []


@pytest.mark.parametrize("host", ["other.example", ""])
async def test_a_certificate_that_callers_refuse_is_named_by_the_supervisor(
    authority: Authority, tmp_path: Path, host: str
) -> None:
    """Of another host, and one that has expired."""
    pair = authority.issue("engine", host) if host else authority.issue("engine", expired=True)
    use(asking(authority))
    shown = PortCertificate(pair.certificate, pair.key).context
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=shown) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        said = await sampled(url, asking(authority))
        why = "IP address mismatch" if host else "certificate has expired"
        assert why in said
        attached = AttachedEngine(EmbeddedKind(EngineOptions(MODEL)), url, start_s=1.0)
        with pytest.raises(EngineBroken, match=f"was not healthy within 1 s .*{why}"):
            await attached.start(served(make_policy(tmp_path / "policy", 1)))
        await attached.stop()


@asynccontextmanager
async def serving(shown: ssl.SSLContext, body: bytes, *, head: str = "HTTP/1.1 200 OK") -> AsyncIterator[str]:
    """Whatever is asked, one answer for each connection; its address."""

    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{head}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(listener, "127.0.0.1", 0, ssl=shown) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def served(directory: Path) -> Policy:
    """As a supervisor hands it over; nothing is proven of it here."""
    target = EngineTarget(1, "d", BlobRef("k", "0" * 64, 1))
    return Policy(target, directory, (), "float32", "w")
