"""Keys that an operator makes: what is refused, what is kept, that a revocation holds everywhere."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import grpc
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness
from tests.services.checkpoint_registry.running_registry import Stack, policy, upload

from checkpoint_registry.adapters import sql_keys
from checkpoint_registry.adapters.sql_keys import SqlKeyStore
from checkpoint_registry.app import build_app
from checkpoint_registry.domain.errors import HeadMoved, KeysNeedAccess, TooManyKeys, UnknownKey
from checkpoint_registry.domain.keys import KeyOrder
from checkpoint_registry.settings import CheckpointRegistrySettings
from checkpoint_registry.usecases.keys import ManageKeys
from grpc_edge import GrpcServer
from grpc_edge.access import UNAUTHENTICATED, Caller
from grpc_edge.issued_keys import sha256_of
from grpc_edge.key_follower import access_of
from service_kit.errors import InvalidRequest
from service_kit.groups import ServerAccessSettings
from service_kit.service import Service
from sql_store.audit import entries
from upcycle.api.audit.v1 import service_pb2 as audit_pb
from upcycle.api.audit.v1.service_pb2_grpc import AuditServiceStub
from upcycle.api.common.v1.access_pb2 import ROLE_OPERATOR, ROLE_SERVICE, ROLE_USER
from upcycle.api.keys.v1 import service_pb2 as pb
from upcycle.api.keys.v1.service_pb2_grpc import KeyServiceStub
from upcycle.api.registry.v1 import service_pb2 as registry
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    RegistryServiceStub,
    add_RegistryServiceServicer_to_server,
)
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteDenied, RemoteError, RemoteRefused, connect, remote_errors

BOSS = Caller("operator", ROLE_OPERATOR)
ADA = KeyOrder("ada", ROLE_USER, (), None)
SERVICE, OPERATOR = "service-key-0123456789ab", "operator-key-0123456789ab"
ACCESS = ServerAccessSettings(open=False, service_key=SecretStr(SERVICE), operator_key=SecretStr(OPERATOR))
HELD_S = 5.0


@pytest.fixture
def keys(harness: RegistryHarness) -> ManageKeys:
    return ManageKeys(SqlKeyStore(harness.database), now=harness.clock)


async def test_a_key_is_valid_until_it_is_revoked_and_its_text_is_kept_nowhere(
    keys: ManageKeys, harness: RegistryHarness
) -> None:
    key, secret = await keys.create(ADA, BOSS)
    assert (key.name, key.scopes, key.created_by, key.expires_at) == (
        "ada", ("inference", "platform"), "operator", None,
    )  # fmt: skip
    snapshot = await keys.valid_keys("", ())
    assert snapshot is not None
    assert snapshot.keys[sha256_of(secret)].key_id == key.key_id
    assert await keys.valid_keys(snapshot.digest, ()) is None
    revoked = await keys.revoke(key.key_id, replace(BOSS, key_id="other"))
    assert (revoked.revoked_at, revoked.revoked_by) == (START, "key:other")
    harness.clock.forward(60)
    assert await keys.revoke(key.key_id, BOSS) == revoked
    after = await keys.valid_keys(snapshot.digest, ())
    assert after is not None
    assert not after.keys
    assert after.revoked == {sha256_of(secret)}
    rows = await harness.database.run(
        lambda connection: connection.execute(text("select * from api_key")).all()
    )
    assert secret not in repr(rows)
    assert secret.rpartition("_")[2] not in repr(rows)


async def test_an_expired_key_is_listed_only_where_all_are_asked_for(
    keys: ManageKeys, harness: RegistryHarness
) -> None:
    await keys.create(replace(ADA, expires_in_s=60.0), BOSS)
    assert len(await keys.listed(include_ended=False)) == 1
    harness.clock.forward(60)
    snapshot = await keys.valid_keys("", ())
    assert snapshot is not None
    assert (dict(snapshot.keys), await keys.listed(include_ended=False)) == ({}, [])
    assert [key.expires_at for key in await keys.listed(include_ended=True)] == [
        START + timedelta(seconds=60)
    ]


async def test_the_last_use_is_kept_to_ten_minutes(keys: ManageKeys, harness: RegistryHarness) -> None:
    key, _ = await keys.create(ADA, BOSS)
    seen = []
    for _ in range(4):
        harness.clock.forward(301)
        await keys.valid_keys("", {key.key_id, "unknown"})
        seen.append((await keys.listed(include_ended=False))[0].last_used_at)
    assert seen == [START + timedelta(seconds=s) for s in (301, 301, 903, 903)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": ""}, "1 to 64"),
        ({"name": "a\nb"}, "1 to 64"),
        ({"name": "a" * 65}, "1 to 64"),
        ({"role": ROLE_SERVICE}, "user or operator"),
        ({"role": 0}, "user or operator"),
        ({"expires_in_s": 0.0}, "not after 0 s"),
        ({"expires_in_s": float("nan")}, "not after nan s"),
        ({"expires_in_s": 1e12}, "not after"),
        ({"scopes": ("admin",)}, "scope 'admin' is none of"),
        ({"scopes": ("inference:No Slug",)}, "is not a slug"),
        ({"scopes": ("inference", "inference:incident")}, "leave it out"),
        ({"scopes": tuple(f"inference:m{n}" for n in range(33))}, "at most 32"),
    ],
)
async def test_what_no_key_may_be_is_refused_and_makes_none(
    keys: ManageKeys, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        await keys.create(replace(ADA, **change), BOSS)
    assert await keys.listed(include_ended=True) == []


async def test_no_more_keys_are_made_than_servers_have_in_memory(
    keys: ManageKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_keys, "MAX_VALID", 2)
    first, _ = await keys.create(ADA, BOSS)
    await keys.create(ADA, BOSS)
    with pytest.raises(TooManyKeys):
        await keys.create(ADA, BOSS)
    await keys.revoke(first.key_id, BOSS)
    await keys.create(ADA, BOSS)


async def test_a_platform_that_asks_for_no_keys_makes_and_revokes_none(keys: ManageKeys) -> None:
    key, _ = await keys.create(ADA, BOSS)
    with pytest.raises(KeysNeedAccess):
        await keys.create(ADA, UNAUTHENTICATED)
    with pytest.raises(KeysNeedAccess):
        await keys.revoke(key.key_id, UNAUTHENTICATED)
    with pytest.raises(UnknownKey, match="keys list --all"):
        await keys.revoke("nothere", BOSS)


async def test_a_key_is_revoked_by_its_text_too_which_no_error_repeats(keys: ManageKeys) -> None:
    key, text = await keys.create(ADA, BOSS)
    assert (await keys.revoke(text, BOSS)).key_id == key.key_id
    with pytest.raises(UnknownKey) as error:
        await keys.revoke(text.replace(key.key_id, "nothere"), BOSS)
    assert text[-20:] not in str(error.value)


@dataclass
class Platform:
    """A registry and another server that follows its keys."""

    settings: CheckpointRegistrySettings
    other: str

    @property
    def registry(self) -> str:
        return f"127.0.0.1:{self.settings.grpc_port}"

    async def make(self, role: Any, key: str = OPERATOR, **fields: Any) -> pb.CreateKeyResponse:
        request = pb.CreateKeyRequest(name="ada", role=role, **fields)
        # The follower was refused before the registry listened, and gRPC waits before it connects again.
        async with connect(self.registry, api_key=key, idempotent={"CreateKey"}) as channel:
            with remote_errors("make"):
                return await KeyServiceStub(channel).CreateKey(request)

    async def revoke(self, key_id: str) -> None:
        async with connect(self.registry, api_key=OPERATOR) as channel:
            await KeyServiceStub(channel).RevokeKey(pb.RevokeKeyRequest(key_id=key_id))

    async def status(self, address: str, key: str) -> str:
        """What a server says to a key; NOT_FOUND is an answer about the model."""
        async with connect(address, api_key=key) as channel:
            try:
                with remote_errors("ask"):
                    await RegistryServiceStub(channel).GetModel(
                        registry.GetModelRequest(model="none"), timeout=2
                    )
            except RemoteError as error:
                return error.code.name
            except Unavailable:
                return "UNAVAILABLE"
        raise AssertionError

    async def becomes(self, address: str, key: str, status: str) -> float:
        """Seconds until a server says so."""
        begun = time.monotonic()
        while (said := await self.status(address, key)) != status:
            assert time.monotonic() < begun + HELD_S, f"{address} still says {said}"
            await asyncio.sleep(0.05)
        return time.monotonic() - begun


class Other(RegistryServiceServicer):
    """Any other server of the platform."""

    async def GetModel(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


@pytest.fixture
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    """The registry is not started."""
    settings = stack.settings.model_copy(update={"access": ACCESS})
    follower = Service("follower", settings.model_copy(update={"http_port": 0}))
    access = access_of(follower, ACCESS, f"127.0.0.1:{settings.grpc_port}")
    server = GrpcServer("127.0.0.1", 0, access, grace_s=0.1)
    follower.add(server.add(add_RegistryServiceServicer_to_server, Other()))  # type: ignore[abstract]
    async with running(follower):
        yield Platform(settings, server.address)


async def test_a_revocation_holds_everywhere_within_five_seconds_and_after_restarts(
    platform: Platform,
) -> None:
    async with running(build_app(platform.settings)):
        made = await platform.make(ROLE_USER)
        for address in (platform.registry, platform.other):
            await platform.becomes(address, made.secret, "NOT_FOUND")
        await platform.revoke(made.key.key_id)
        for address in (platform.registry, platform.other):
            await platform.becomes(address, made.secret, "UNAUTHENTICATED")
        kept = await platform.make(ROLE_USER)
        await platform.becomes(platform.other, kept.secret, "NOT_FOUND")
    # The registry is away: the other server goes by what it was snapshot last.
    assert await platform.status(platform.other, kept.secret) == "NOT_FOUND"
    assert await platform.status(platform.other, made.secret) == "UNAUTHENTICATED"
    async with running(build_app(platform.settings)):
        await platform.becomes(platform.registry, kept.secret, "NOT_FOUND")
        assert await platform.status(platform.registry, made.secret) == "UNAUTHENTICATED"
        assert await platform.status(platform.other, made.secret) == "UNAUTHENTICATED"


async def test_users_make_no_keys_and_operators_with_issued_keys_do(platform: Platform) -> None:
    async with running(build_app(platform.settings)):
        user = (await platform.make(ROLE_USER)).secret
        boss = await platform.make(ROLE_OPERATOR, expires_in_s=3.0)
        await platform.becomes(platform.registry, user, "NOT_FOUND")
        with pytest.raises(RemoteDenied, match="ROLE_NOT_ALLOWED"):
            await platform.make(ROLE_OPERATOR, user)
        await platform.becomes(platform.registry, boss.secret, "NOT_FOUND")
        made = await platform.make(ROLE_USER, boss.secret)
        assert made.key.created_by == f"key:{boss.key.key_id}"
        await platform.becomes(platform.other, boss.secret, "NOT_FOUND")
        for address in (platform.registry, platform.other):
            await platform.becomes(address, boss.secret, "UNAUTHENTICATED")
        async with connect(platform.registry, api_key=OPERATOR) as channel:
            listed = (await KeyServiceStub(channel).ListKeys(pb.ListKeysRequest(include_ended=True))).keys
        assert [one.HasField("last_used_at") for one in listed] == [True, True, False]


async def test_the_audit_log_says_whose_key_changed_what(platform: Platform) -> None:
    async with running(build_app(platform.settings)):
        boss = await platform.make(ROLE_OPERATOR)
        await platform.becomes(platform.registry, boss.secret, "NOT_FOUND")
        async with connect(platform.registry, api_key=boss.secret) as channel:
            stub = RegistryServiceStub(channel)
            base = (await upload(stub, "incident", policy())).base
            forked = (
                await stub.ForkModel(registry.ForkModelRequest(source_model="incident", model="b"))
            ).base
        await platform.revoke(boss.key.key_id)
        async with connect(platform.registry, api_key=OPERATOR) as channel:
            audit = AuditServiceStub(channel)
            found = (await audit.ListEntries(audit_pb.ListEntriesRequest(limit=10))).entries
            with pytest.raises(RemoteRefused, match="expected 1 to 1000"), remote_errors("read"):
                await audit.ListEntries(audit_pb.ListEntriesRequest(limit=0))
    me, key = f"key:{boss.key.key_id}", f"key {boss.key.key_id}"
    assert [(one.who, one.rpc, one.object, one.outcome) for one in found] == [
        ("operator", "KeyService/CreateKey", key, "made for ada: operator, inference, platform"),
        (me, "RegistryService/ImportModel", "model incident", "added"),
        (me, "RegistryService/ForkModel", "model b", f"added from {base.checkpoint_id}"),
        ("operator", "KeyService/RevokeKey", key, "revoked, of ada"),
    ]
    assert [one.digest for one in found[1:3]] == [base.digest, forked.digest]


async def test_a_move_of_head_and_its_entry_are_one_transaction(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.models.move_head(
        await harness.models.version(MODEL, 1), expected_revision=1, actor="ada (operator)", reason="why not",
        at=START,
    )  # fmt: skip
    with pytest.raises(HeadMoved):
        await harness.models.move_head(
            await harness.models.version(MODEL, 0), expected_revision=1, actor="x", reason="y", at=START
        )
    found = await entries(harness.database, since=None, who="", after=0, limit=10)
    assert [(one.who, one.rpc, one.outcome.partition(":")[2]) for one in found] == [
        ("import", "", ""), ("ada (operator)", "", " why not"),
    ]  # fmt: skip
