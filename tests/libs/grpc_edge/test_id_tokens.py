"""Tokens of people, checked against an issuer that the test runs: what is signed for this platform is taken
with the role that its claim stands for, and everything else is refused."""

import asyncio
import base64
import hashlib
import hmac
import json
import math
import time
from collections.abc import AsyncIterator, Collection
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import SecretStr, ValidationError
from tests.libs.grpc_edge.test_issued_keys import Registry, Tasksets, who

from grpc_edge import GrpcServer
from grpc_edge.access import Access
from grpc_edge.id_tokens import LEEWAY_S, TRUSTED_S, IdTokens, fetch_from
from grpc_edge.issued_keys import IssuedKeys, ValidKeys
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.domain.errors import KeysUnavailable, NotAllowed, NotAuthenticated
from model_gateway.usecases.access import KeyAccess
from service_kit.groups import AccessSettings
from sql_store import Database
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.api.registry.v1 import service_pb2_grpc as registry_rpc
from upcycle.api.taskset.v1 import service_pb2 as taskset
from upcycle.api.taskset.v1 import service_pb2_grpc as taskset_rpc
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteDenied, RemoteRefused, connect, remote_errors

ISSUER, AUDIENCE = "https://issuer.example", "upcycle"


class Issuer:
    """Signs tokens, and shows its public keys over HTTP."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"k1": rsa.generate_private_key(65537, 2048)}
        self.url = ""
        self.is_away = False

    async def jwks(self, _request: web.Request) -> web.Response:
        if self.is_away:
            raise web.HTTPServiceUnavailable
        rows = [
            {**json.loads(_algorithm(key).to_jwk(key.public_key())), "kid": kid}
            for kid, key in self.keys.items()
        ]
        shared = {
            "kty": "oct",
            "kid": "shared",
            "alg": "HS256",
            "k": base64.urlsafe_b64encode(b"x" * 32).decode(),
        }
        return web.json_response({"keys": [*rows, shared, {"kty": "new", "kid": "?"}, "no key"]})

    def token(self, kid: str = "k1", alg: str = "RS256", key: Any = None, **claims: Any) -> str:
        """A token that is right but for what is given; None leaves a claim out."""
        now = int(time.time())
        usual = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 60,
            "roles": ["people"],
        }
        given = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(given, key or self.keys[kid], algorithm=alg, headers={"kid": kid})


def _algorithm(key: Any) -> Any:
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    return jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    app = web.Application()
    app.router.add_get("/jwks", made.jwks)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/jwks"
    yield made
    await runner.cleanup()


def settings(url: str, **others: Any) -> AccessSettings:
    """Of a server that takes its tokens."""
    given: dict[str, Any] = {
        "open": False,
        "service_key": SecretStr("service-key-0123456789ab"),
        "oidc_issuer": ISSUER,
        "oidc_audience": AUDIENCE,
        "oidc_jwks_url": url,
        "oidc_user_roles": ("people",),
        "oidc_operator_roles": ("admins",),
    }
    return AccessSettings(**{**given, **others})


@pytest.fixture
async def tokens(issuer: Issuer) -> IdTokens:
    found = IdTokens(settings(issuer.url), fetch_from(issuer.url))
    await found.refresh()
    return found


def unsigned(head: dict[str, Any], claims: dict[str, Any], key: bytes = b"") -> str:
    """A token without a signature, or with one of HMAC: the library makes neither with a public key."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, claims)]
    signed = hmac.new(key, b".".join(parts), hashlib.sha256).digest() if key else b""
    return b".".join([*parts, base64.urlsafe_b64encode(signed).rstrip(b"=")]).decode()


def test_a_person_has_the_role_that_the_claim_stands_for(issuer: Issuer, tokens: IdTokens) -> None:
    roles = {"people": Role.ROLE_USER, "admins": Role.ROLE_OPERATOR}
    for value, role in roles.items():
        found = tokens.find(issuer.token(roles=["other", value]))
        assert found is not None
        assert (found.name, found.role) == ("oidc:ada", role)
    both = tokens.find(issuer.token(roles=["people", "admins"], aud=["other", AUDIENCE]))
    assert both is not None
    assert both.role == Role.ROLE_OPERATOR
    nested = IdTokens(
        settings(issuer.url, oidc_role_claim="realm.roles", oidc_name_claim="email"), tokens._fetch
    )
    nested._keys, nested._read_at = tokens._keys, tokens._read_at
    found = nested.find(issuer.token(roles=None, realm={"roles": "people"}, email="ada@x"))
    assert found is not None
    assert found.name == "oidc:ada@x"


def test_two_people_whose_names_begin_alike_are_two(issuer: Issuer, tokens: IdTokens) -> None:
    subjects = ["a" * 64, *("a" * 64 + end for end in ("b", "c", "c" * 200))]
    found = [tokens.find(issuer.token(sub=subject)) for subject in subjects]
    names = [one.name for one in found if one is not None]
    assert len(set(names)) == len(subjects)
    assert names[0] == "oidc:" + "a" * 64
    assert all(len(name) == len("oidc:") + 64 and name.startswith("oidc:aaaa") for name in names)


@pytest.mark.parametrize("name", [["ada"], {"a": 1}, 7, True])
async def test_a_name_that_is_no_text_names_no_person(issuer: Issuer, name: Any) -> None:
    tokens = IdTokens(settings(issuer.url, oidc_name_claim="name"), fetch_from(issuer.url))
    await tokens.refresh()
    assert tokens.find(issuer.token(name=name)) is None
    assert tokens.find(issuer.token(name="ada")) is not None


def test_every_other_token_is_refused(issuer: Issuer, tokens: IdTokens) -> None:
    now = int(time.time())
    pem = (
        issuer.keys["k1"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 60, "roles": ["admins"]}
    good, other = issuer.token(), rsa.generate_private_key(65537, 2048)
    head, body, _ = good.split(".")
    wrong = {
        "expired": issuer.token(exp=now - LEEWAY_S - 2),
        "not valid yet": issuer.token(nbf=now + 600),
        "of another issuer": issuer.token(iss="https://other.example"),
        "for another audience": issuer.token(aud="other"),
        "without an audience": issuer.token(aud=None),
        "without an end": issuer.token(exp=None),
        "that never ends": issuer.token(exp=math.inf),
        "without an owner": issuer.token(sub=None),
        "without a role": issuer.token(roles=["strangers"]),
        "with roles that are none": issuer.token(roles={"people": True}),
        "alg none": unsigned({"alg": "none", "kid": "k1"}, claims),
        "HS256 with the public key": unsigned({"alg": "HS256", "kid": "k1"}, claims, pem),
        "HS256 with a published key": unsigned({"alg": "HS256", "kid": "shared"}, claims, b"x" * 32),
        "RS512, where the key is of RS256": issuer.token(alg="RS512"),
        "unknown kid": issuer.token(kid="k2", key=other),
        "known kid, another key": issuer.token(key=other),
        "without a kid": jwt.encode(claims, issuer.keys["k1"], algorithm="RS256"),
        "another's signature": ".".join([*issuer.token(sub="eve").split(".")[:2], good.rpartition(".")[2]]),
        "no signature": f"{head}.{body}.",
        "no token": "a.b.c",
    }
    assert {name: tokens.find(text) for name, text in wrong.items()} == dict.fromkeys(wrong)


async def test_a_rotated_key_is_taken_and_one_that_was_withdrawn_is_refused(issuer: Issuer) -> None:
    tokens = IdTokens(settings(issuer.url), fetch_from(issuer.url))
    await tokens.refresh()
    old = issuer.token()
    issuer.keys = {"k2": ec.generate_private_key(ec.SECP256R1())}
    new = issuer.token("k2", "ES256")
    assert tokens.find(new) is None
    assert tokens._look.is_set(), "an unknown key has the issuer asked again"
    await tokens.refresh()
    assert tokens.find(new) is not None
    assert tokens.find(old) is None


async def test_while_the_issuer_is_away_its_last_keys_count_for_an_hour(issuer: Issuer) -> None:
    passed = [0.0]
    tokens = IdTokens(settings(issuer.url), fetch_from(issuer.url), seconds=lambda: passed[0])
    with pytest.raises(Unavailable, match=r"the keys of issuer https://issuer\.example: not asked yet"):
        tokens.find(issuer.token())
    await tokens.refresh()
    issuer.is_away, passed[0] = True, TRUSTED_S
    await tokens.refresh()
    assert tokens.find(issuer.token()) is not None
    assert tokens.ready() is None
    passed[0] += 1
    with pytest.raises(Unavailable, match="answers 503"):
        tokens.find(issuer.token())
    assert "tokens of people are refused" in (tokens.ready() or "")


async def test_a_token_counts_for_the_tenant_that_its_claim_names(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one issuer has the people of several."""
    monkeypatch.setattr("grpc_edge.id_tokens.OWN_TENANT", "acme")
    tokens = IdTokens(settings(issuer.url, oidc_tenant_claim="org.tenants"), fetch_from(issuer.url))
    await tokens.refresh()

    def is_taken(**claims: Any) -> bool:
        return tokens.find(issuer.token(roles=["admins"], **claims)) is not None

    assert is_taken(org={"tenants": "acme"})
    assert is_taken(org={"tenants": ["beta", "acme"]})
    others: list[Any] = ["beta", [], ["acme-2"], {"acme": 1}, None]
    for other in others:
        assert not is_taken(org={"tenants": other}), other
    assert not is_taken()


@pytest.fixture
async def address(issuer: Issuer, tokens: IdTokens) -> AsyncIterator[str]:
    server = GrpcServer("127.0.0.1", 0, Access.of(settings(issuer.url), None, tokens), grace_s=0.1)
    server.add(registry_rpc.add_RegistryServiceServicer_to_server, Registry())  # type: ignore[abstract]
    server.add(taskset_rpc.add_TasksetServiceServicer_to_server, Tasksets())  # type: ignore[abstract]
    await server.start()
    yield server.address
    await server.stop()


async def test_a_server_takes_tokens_beside_keys(address: str, issuer: Issuer) -> None:
    assert await who(address, issuer.token()) == "oidc:ada oidc:ada False"
    assert await who(address, issuer.token(roles="admins")) == "oidc:ada oidc:ada True"
    with pytest.raises((RemoteDenied, RemoteRefused)):
        await who(address, issuer.token(aud="other"))


async def watch(address: str, key: str) -> None:
    """A run, for as long as it is shown."""
    async with connect(address, api_key=key) as channel, asyncio.timeout(60):
        with remote_errors("watch"):
            async for _ in taskset_rpc.TasksetServiceStub(channel).WatchRun(taskset.WatchRunRequest()):
                pass


async def test_a_stream_ends_with_its_token(address: str, issuer: Issuer) -> None:
    with pytest.raises((RemoteDenied, RemoteRefused), match="expired or was revoked during the call"):
        await watch(address, issuer.token(exp=int(time.time() - LEEWAY_S) + 3))


class NoRegistry:
    """Issues no key."""

    async def valid_keys(self, known: str, used: Collection[str]) -> ValidKeys | None:
        return None


def gateway_with(tokens: IdTokens) -> KeyAccess:
    """Who may ask it."""
    return KeyAccess(SqlKeyStore(Database("sqlite://")), IssuedKeys(NoRegistry()), tokens)


async def test_the_gateway_takes_them(issuer: Issuer, tokens: IdTokens) -> None:
    access = gateway_with(tokens)
    user = await access.authenticate(f"Bearer {issuer.token()}")
    assert user.name == "oidc:ada"
    assert user.scopes == {"inference"}
    assert not user.models, "all of them"
    again = await access.authenticate(None, issuer.token(exp=int(time.time()) + 30))
    assert again.key_id == user.key_id
    assert (await access.authenticate(None, issuer.token(roles="admins"))).scopes == {"inference", "admin"}
    with pytest.raises(NotAllowed):
        user.require("admin")
    with pytest.raises(NotAuthenticated):
        await access.authenticate(f"Bearer {issuer.token(iss='https://other.example')}")
    unread = gateway_with(IdTokens(settings(issuer.url), fetch_from(issuer.url)))
    with pytest.raises(KeysUnavailable):
        await unread.authenticate(f"Bearer {issuer.token()}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"oidc_audience": ""}, "go together: set all three or none"),
        ({"oidc_user_roles": (), "oidc_operator_roles": ()}, "no person has a role"),
        ({"oidc_jwks_url": "http://issuer.example/jwks"}, "use https"),
    ],
)
def test_settings_that_admit_no_caller_or_any_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings("https://issuer.example/jwks", **given)


async def test_keys_that_arrive_in_several_pieces_are_read_whole() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"keys":', b" []}"):
            await response.write(piece)
            await asyncio.sleep(0.05)
        return response

    app = web.Application()
    app.router.add_get("/keys", answer)
    async with TestServer(app) as server:
        assert await fetch_from(str(server.make_url("/keys")))() == {"keys": []}


async def test_keys_nested_too_deep_to_be_read_are_refused_by_name() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"[" * 50_000)

    app = web.Application()
    app.router.add_get("/keys", answer)
    async with TestServer(app) as server:
        with pytest.raises(Unavailable, match="no JWKS document"):
            await fetch_from(str(server.make_url("/keys")))()
