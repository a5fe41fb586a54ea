"""Keys and roles: each rpc says in its contract who may call it, and a server admits no other."""

import importlib
import pkgutil
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from pydantic import SecretStr, ValidationError

import upcycle.api
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN, UNAUTHENTICATED, Access, callers_of, current_caller, may_decide
from service_kit.groups import AccessSettings, ServerAccessSettings
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1 import service_pb2_grpc as rpc
from upcycle.rpc import RemoteDenied, RemoteRefused, connect, remote_errors

OPERATOR, OLDER, OTHER = "operator-key-0123456789", "operator-key-replaced-012", "service-key-0123456789ab"
ADA, BOB = "adas-key-0123456789", "bobs-key-0123456789"
KEYS = AccessSettings(
    open=False,  # in tests it is set
    service_key=SecretStr(OTHER),
    operator_key=SecretStr(f"{OPERATOR}, {OLDER}"),
    user_keys=SecretStr(f"ada:{ADA},bob:{BOB}"),
)


def methods() -> Iterator[str]:
    """Every rpc of the contracts, as `/package.Service/Method`."""
    for module in pkgutil.walk_packages(upcycle.api.__path__, "upcycle.api."):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            for service in file.services_by_name.values():
                yield from (f"/{service.full_name}/{method}" for method in service.methods_by_name)


class Registry(rpc.RegistryServiceServicer):
    """Answers with who called."""

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        answer = pb.GetModelResponse()
        caller = current_caller()
        answer.model.model = f"{caller.name}, {Role.Name(caller.role)}, decides: {may_decide(caller)}"
        return answer

    async def SetHead(self, request: pb.SetHeadRequest, context: Any) -> pb.SetHeadResponse:
        return pb.SetHeadResponse()

    async def RenewEngineLease(self, request: Any, context: Any) -> pb.RenewEngineLeaseResponse:
        return pb.RenewEngineLeaseResponse()

    async def ImportModel(self, request_iterator: Any, context: Any) -> pb.ImportModelResponse:
        async for _ in request_iterator:
            pass
        return pb.ImportModelResponse()


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = GrpcServer("127.0.0.1", 0, Access.of(KEYS), grace_s=0.1)
    server.add(rpc.add_RegistryServiceServicer_to_server, Registry())  # type: ignore[abstract]
    await server.start()
    yield server.address
    await server.stop()


async def who(address: str, key: str | None) -> str:
    async with connect(address, api_key=key) as channel:
        with remote_errors("ask"):
            return (await rpc.RegistryServiceStub(channel).GetModel(pb.GetModelRequest())).model.model


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (OPERATOR, "operator, ROLE_OPERATOR, decides: True"),
        (OLDER, "operator, ROLE_OPERATOR, decides: True"),
        (OTHER, "service, ROLE_SERVICE, decides: False"),
        (ADA, "ada, ROLE_USER, decides: False"),
        (BOB, "bob, ROLE_USER, decides: False"),
    ],
)
async def test_a_key_says_who_calls(address: str, key: str, says: str) -> None:
    assert await who(address, key) == says


@pytest.mark.parametrize("key", [None, "", "wrong", OPERATOR[:-1], f"{OPERATOR}x", "ada", f"ada:{ADA}"])
async def test_any_other_key_is_refused(address: str, key: str | None) -> None:
    with pytest.raises(RemoteDenied, match="UPCYCLE_OPERATOR_KEY") as refused:
        await who(address, key)
    assert (refused.value.code.name, refused.value.reason) == ("UNAUTHENTICATED", "WRONG_API_KEY")


async def test_a_key_of_another_role_is_refused_by_name(address: str) -> None:
    asked = {
        "SetHead": (pb.SetHeadRequest(), {OPERATOR, OTHER}),
        "RenewEngineLease": (pb.RenewEngineLeaseRequest(), {OTHER}),
        "ImportModel": (iter([pb.ImportModelRequest()]), {OPERATOR}),
    }
    for method, (request, allowed) in asked.items():
        for key in (OPERATOR, OTHER, ADA):
            async with connect(address, api_key=key) as channel:
                call = getattr(rpc.RegistryServiceStub(channel), method)
                if key in allowed:
                    await call(request)
                    continue
                said = rf"{method} is for the key of: "
                with pytest.raises(RemoteDenied, match=said) as refused, remote_errors(method):
                    await call(request)
                assert refused.value.reason == "ROLE_NOT_ALLOWED"


async def test_the_scheme_may_be_written_small(address: str) -> None:
    async with connect(address) as channel:
        stub = rpc.RegistryServiceStub(channel)
        answer = await stub.GetModel(pb.GetModelRequest(), metadata=(("authorization", f"bearer {ADA}"),))
    assert answer.model.model.startswith("ada, ")


def test_every_rpc_says_who_may_call_it() -> None:
    found = list(methods())
    assert "/upcycle.api.registry.v1.RegistryService/SetHead" in found
    assert [method for method in found if not callers_of(method)] == []
    assert callers_of("/upcycle.api.registry.v1.RegistryService/NoSuch") == ()
    assert callers_of("/no.such.Service/GetModel") == ()


def test_what_decides_about_the_platform_is_not_for_users() -> None:
    registry, tasksets = "/upcycle.api.registry.v1.RegistryService", "/upcycle.api.taskset.v1.TasksetService"
    closed = [
        *(f"{registry}/{name}" for name in ("ImportModel", "ForkModel", "SetHead", "RenewEngineLease")),
        f"{tasksets}/DeployEnvironment",
        f"{tasksets}/GetSource",
        f"{tasksets}/DeleteTaskset",
        "/upcycle.api.environment.v1.EnvironmentService/Open",
        "/upcycle.api.environment.v1.EnvironmentService/Grade",
        "/upcycle.api.retention.v1.RetentionService/SweepRetention",
        "/upcycle.api.retention.v1.ReferenceService/ListReferences",
    ]
    assert [method for method in closed if Role.ROLE_USER in callers_of(method)] == []


def test_a_server_without_keys_starts_only_where_it_is_set_open() -> None:
    with pytest.raises(ValidationError, match="UPCYCLE_ACCESS_OPEN=true"):
        ServerAccessSettings(open=False)
    assert Access.of(ServerAccessSettings(open=True)) == OPEN
    closed = Access.of(AccessSettings(open=False))
    assert closed.caller((("authorization", "Bearer "),)) is None
    assert OPEN.caller(()) is UNAUTHENTICATED


async def raw(address: str, body: bytes, *keys: str) -> tuple[str, str]:
    """Status and details of a call whose request is these bytes, with one `authorization` for each key."""
    async with connect(address) as channel:
        call: Any = channel.unary_unary("/upcycle.api.registry.v1.RegistryService/GetModel")
        try:
            await call(body, metadata=tuple(("authorization", f"Bearer {key}") for key in keys), timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code().name, str(error.details())
    return "OK", ""


@pytest.mark.parametrize("keys", [(ADA, BOB), (ADA, ADA), ("wrong", OPERATOR), (OPERATOR, "")])
async def test_a_call_with_two_keys_is_refused(address: str, keys: tuple[str, ...]) -> None:
    assert (await raw(address, b"", ADA))[0] == "OK"
    assert (await raw(address, b"", *keys))[0] == "UNAUTHENTICATED"


async def test_what_a_stranger_sends_is_not_decoded(address: str) -> None:
    """Of these bytes no message can be made, which is said to those who may ask."""
    for body in (b"\xff" * 32, b"\xff" * (4 << 20)):
        status, details = await raw(address, body, ADA)
        assert (status, "no message that this rpc takes" in details) == ("INVALID_ARGUMENT", True)
        status, details = await raw(address, body, "wrong")
        assert (status, "UPCYCLE_OPERATOR_KEY" in details) == ("UNAUTHENTICATED", True)


def test_a_user_may_have_two_keys_while_one_is_replaced() -> None:
    keys = AccessSettings(open=False, user_keys=SecretStr(f"ada:{ADA},ada:{BOB}"))
    callers = [Access.of(keys).caller((("authorization", f"Bearer {key}"),)) for key in (ADA, BOB)]
    assert [caller.name if caller else None for caller in callers] == ["ada", "ada"]


@pytest.mark.parametrize("name", ["operator", "service", "unauthenticated"])
def test_no_user_has_the_name_of_another_role(name: str) -> None:
    with pytest.raises(ValidationError, match=f"cannot be called '{name}'"):
        AccessSettings(open=False, user_keys=SecretStr(f"{name}:{ADA}"))


def test_one_key_stands_for_one_user() -> None:
    with pytest.raises(ValidationError, match="one key stands for two callers"):
        AccessSettings(open=False, user_keys=SecretStr(f"ada:{ADA},bob:{ADA}"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"service_key": "short"}, "a key has 5 characters, needs at least 16"),
        ({"operator_key": f"{OPERATOR},short"}, "a key has 5 characters, needs at least 16"),
        ({"user_keys": ADA}, "must be NAME:KEY pairs"),
        ({"user_keys": "ada:short"}, "a key has 5 characters"),
        ({"service_key": OPERATOR, "operator_key": OPERATOR}, "one key stands for two callers"),
        ({"user_keys": f"ada:{ADA},bob:{ADA}"}, "one key stands for two callers"),
    ],
)
def test_bad_keys_are_refused_and_not_shown(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)) as refused:
        AccessSettings.model_validate(given)
    assert OPERATOR not in str(refused.value)
    assert ADA not in str(refused.value)


def test_the_first_key_is_sent() -> None:
    assert AccessSettings(service_key=SecretStr(f"{OTHER},{OLDER}")).sent == OTHER
    assert AccessSettings().sent is None


async def test_a_stream_that_is_no_message_is_refused_as_one(address: str) -> None:
    async with connect(address, api_key=OPERATOR) as channel:
        call: Any = channel.stream_unary("/upcycle.api.registry.v1.RegistryService/ImportModel")
        with pytest.raises(RemoteRefused, match="no message that this rpc takes"), remote_errors("import"):
            await call(iter([b"\xff" * 32]), timeout=20)
