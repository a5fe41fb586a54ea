"""Keys that the registry issued, as a server knows them: which calls they admit, and when no longer."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from pydantic import SecretStr

from grpc_edge import GrpcServer
from grpc_edge.access import Access, current_caller, may_decide
from grpc_edge.issued_keys import TRUSTED_S, IssuedKey, IssuedKeys, ValidKeys, sha256_of
from service_kit.groups import AccessSettings
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.api.registry.v1 import service_pb2 as registry
from upcycle.api.registry.v1 import service_pb2_grpc as registry_rpc
from upcycle.api.taskset.v1 import service_pb2 as taskset
from upcycle.api.taskset.v1 import service_pb2_grpc as taskset_rpc
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteDenied, RemoteError, connect, remote_errors

NOW = datetime(2026, 11, 27, tzinfo=UTC)
ADA, OPS, GATEWAY = "upk_ada_0123456789abcdef", "upk_ops_0123456789abcdef", "upk_app_0123456789abcdef"
KEYS = {
    ADA: IssuedKey("ada", "ada", Role.ROLE_USER, frozenset({"platform"}), NOW),
    OPS: IssuedKey("ops", "ops", Role.ROLE_OPERATOR, frozenset({"platform", "inference"}), NOW),
    GATEWAY: IssuedKey("app", "app", Role.ROLE_OPERATOR, frozenset({"inference"}), NOW),
}


@dataclass
class Source:
    """A registry. valid, revoked: keys by their text."""

    valid: dict[str, IssuedKey] = field(default_factory=lambda: dict(KEYS))
    revoked: set[str] = field(default_factory=set)
    is_away: bool = False
    used: list[frozenset[str]] = field(default_factory=list)

    async def valid_keys(self, known: str, used: Collection[str]) -> ValidKeys | None:
        if self.is_away:
            raise Unavailable("the registry is away")
        self.used.append(frozenset(used))
        digest = repr((sorted(self.valid), sorted(self.revoked)))
        if digest == known:
            return None
        keys = {sha256_of(text): key for text, key in self.valid.items()}
        return ValidKeys(digest, keys, frozenset(map(sha256_of, self.revoked)))

    def revoke(self, text: str) -> None:
        del self.valid[text]
        self.revoked.add(text)


@dataclass
class Clocks:
    """seconds: since the process began."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
async def issued(source: Source, clocks: Clocks) -> IssuedKeys:
    found = IssuedKeys(source, now=clocks.now, seconds=lambda: clocks.seconds)
    await found.refresh()
    return found


async def test_a_valid_key_is_found_and_an_altered_one_is_not(issued: IssuedKeys) -> None:
    assert issued.find(ADA) == KEYS[ADA]
    # The last one: bytes of a header that are no text, as an HTTP server hands them over.
    others = (ADA[:-1], f"{ADA}0", ADA.replace("ada", "bob"), ADA.upper(), sha256_of(ADA), "", f"{ADA}\udcff")
    for altered in others:
        assert issued.find(altered) is None, altered


async def test_a_key_ends_at_its_time_without_asking_the_registry(source: Source, clocks: Clocks) -> None:
    source.valid[ADA] = replace(KEYS[ADA], expires_at=NOW + timedelta(seconds=60))
    issued = IssuedKeys(source, now=clocks.now, seconds=lambda: clocks.seconds)
    await issued.refresh()
    clocks.seconds = 59.9
    assert issued.find(ADA) is not None
    clocks.seconds = 60.0
    assert issued.find(ADA) is None
    assert not issued.stands("ada")


async def test_a_revoked_key_stays_out_when_the_registry_forgets_that_it_was(
    issued: IssuedKeys, source: Source
) -> None:
    source.revoke(ADA)
    await issued.refresh()
    assert issued.find(ADA) is None
    source.valid, source.revoked = dict(KEYS), set()  # as a registry that was restored from an older backup
    await issued.refresh()
    assert issued.find(ADA) is None
    assert issued.find(OPS) is not None


async def test_what_the_registry_said_last_counts_for_ten_minutes(
    issued: IssuedKeys, source: Source, clocks: Clocks
) -> None:
    source.is_away = True
    clocks.seconds = TRUSTED_S
    await issued.refresh()
    assert (TRUSTED_S, issued.find(ADA), issued.ready()) == (600.0, KEYS[ADA], None)
    clocks.seconds += 1
    with pytest.raises(Unavailable, match=r"601 s.*the registry is away"):
        issued.find(ADA)
    assert "issued keys are refused: the registry is away" in (issued.ready() or "")
    source.is_away = False
    await issued.refresh()
    assert issued.find(ADA) == KEYS[ADA]


async def test_before_the_first_answer_no_key_is_known(source: Source) -> None:
    with pytest.raises(Unavailable, match="which keys are valid"):
        IssuedKeys(source).find(ADA)


async def test_uses_are_reported_once_and_kept_while_the_registry_is_away(
    issued: IssuedKeys, source: Source
) -> None:
    issued.find(ADA)
    issued.find(ADA)
    source.is_away = True
    await issued.refresh()
    issued.find(OPS)
    source.is_away = False
    await issued.refresh()
    await issued.refresh()
    assert source.used == [frozenset(), frozenset({"ada", "ops"}), frozenset()]


class Registry(registry_rpc.RegistryServiceServicer):
    """Answers with who called."""

    async def GetModel(self, request: registry.GetModelRequest, context: Any) -> registry.GetModelResponse:
        caller = current_caller()
        answer = registry.GetModelResponse()
        answer.model.model = f"{caller.principal} {caller.name} {may_decide(caller)}"
        return answer

    async def ForkModel(self, request: registry.ForkModelRequest, context: Any) -> registry.ForkModelResponse:
        return registry.ForkModelResponse()

    async def ImportModel(self, request_iterator: Any, context: Any) -> registry.ImportModelResponse:
        async for _ in request_iterator:
            pass
        return registry.ImportModelResponse()


class Tasksets(taskset_rpc.TasksetServiceServicer):
    """Sends a run again and again."""

    async def WatchRun(
        self, request: taskset.WatchRunRequest, context: Any
    ) -> AsyncIterator[taskset.WatchRunResponse]:
        while True:
            yield taskset.WatchRunResponse()
            await asyncio.sleep(0.01)


@pytest.fixture
async def address(issued: IssuedKeys) -> AsyncIterator[str]:
    settings = AccessSettings(open=False, service_key=SecretStr("service-key-0123456789ab"))
    server = GrpcServer("127.0.0.1", 0, Access.of(settings, issued), grace_s=0.1)
    server.add(registry_rpc.add_RegistryServiceServicer_to_server, Registry())  # type: ignore[abstract]
    server.add(taskset_rpc.add_TasksetServiceServicer_to_server, Tasksets())  # type: ignore[abstract]
    await server.start()
    yield server.address
    await server.stop()


async def who(address: str, key: str) -> str:
    async with connect(address, api_key=key) as channel:
        with remote_errors("ask"):
            stub = registry_rpc.RegistryServiceStub(channel)
            return (await stub.GetModel(registry.GetModelRequest())).model.model


async def test_a_server_takes_issued_keys_with_their_roles(address: str) -> None:
    assert await who(address, ADA) == "key:ada key:ada False"
    assert await who(address, OPS) == "key:ops key:ops True"
    async with connect(address, api_key=ADA) as channel:
        with pytest.raises(RemoteDenied, match="ROLE_NOT_ALLOWED"), remote_errors("fork"):
            await registry_rpc.RegistryServiceStub(channel).ForkModel(registry.ForkModelRequest())


@pytest.mark.parametrize(("key", "why"), [(f"{ADA}0", "WRONG_API_KEY"), (GATEWAY, "SCOPE_NOT_ALLOWED")])
async def test_a_server_refuses_altered_keys_and_keys_of_the_gateway_alone(
    address: str, key: str, why: str
) -> None:
    with pytest.raises(RemoteDenied, match=why):
        await who(address, key)


async def test_while_nothing_is_known_a_call_is_refused_as_unavailable(
    address: str, source: Source, clocks: Clocks
) -> None:
    clocks.seconds = TRUSTED_S + 1
    with pytest.raises(Unavailable, match="which keys are valid"):
        await who(address, ADA)


async def test_a_stream_that_is_read_ends_with_its_key(
    address: str, issued: IssuedKeys, source: Source
) -> None:
    async with connect(address, api_key=ADA) as channel:
        watching = taskset_rpc.TasksetServiceStub(channel).WatchRun(taskset.WatchRunRequest())
        await watching.read()
        source.revoke(ADA)
        await issued.refresh()
        with pytest.raises(RemoteDenied, match="KEY_ENDED"):
            await asyncio.wait_for(read_all(watching), 5)


async def read_all(messages: Any) -> None:
    with remote_errors("watch"):
        async for _ in messages:
            pass


async def test_an_upload_ends_with_its_key(address: str, issued: IssuedKeys, source: Source) -> None:
    async def parts() -> AsyncIterator[registry.ImportModelRequest]:
        yield registry.ImportModelRequest()
        source.revoke(OPS)
        await issued.refresh()
        yield registry.ImportModelRequest()

    async with connect(address, api_key=OPS) as channel:
        with pytest.raises(RemoteError) as refused, remote_errors("import"):
            await registry_rpc.RegistryServiceStub(channel).ImportModel(parts(), timeout=5)
    assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
