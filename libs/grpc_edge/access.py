"""Who calls: the keys that a server knows, and the roles that each rpc is for.

Keys stand in the settings, or are issued by an operator at run time (`issued_keys`).

The protos say which roles may call an rpc (`default_callers` of a service, `callers` of a method), so the
contract and the check cannot differ.
"""

import hmac
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

from grpc_edge.issued_keys import PLATFORM, PREFIX, IssuedKeys, is_token
from service_kit.groups import AccessSettings
from upcycle.api.common.v1 import access_pb2
from upcycle.api.common.v1.access_pb2 import Role

if TYPE_CHECKING:
    from grpc_edge.id_tokens import IdTokens

log = logging.getLogger(__name__)

_BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key or token a call brought. name: as people read it. key_id: of an issued key; scopes: that it
    has. ends_at: of a token, in seconds of Unix time."""

    name: str
    role: Role.ValueType
    key_id: str = ""
    scopes: frozenset[str] = frozenset({PLATFORM})
    ends_at: float | None = None

    @property
    def may_end(self) -> bool:
        """Whether what it brought may end while a call goes on."""
        return bool(self.key_id) or self.ends_at is not None

    @property
    def principal(self) -> str:
        """Who it is, in what is kept: the role of a key of the settings, the id of an issued key, or the name
        in a token."""
        return f"key:{self.key_id}" if self.key_id else self.name


class KeyEnded(Exception):
    """The key of a call expired, or was revoked, while the call went on."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(f"{caller.name} expired or was revoked during the call")


UNAUTHENTICATED: Final = Caller("unauthenticated", Role.ROLE_UNSPECIFIED)
"""The caller of every rpc of a server that is open to all."""


@dataclass(frozen=True, slots=True)
class Access:
    """The keys of one server. is_open: it asks for none, and every caller may call everything. tokens: of
    people, where an issuer is set."""

    callers: Mapping[str, Caller] = field(default_factory=dict, repr=False)
    is_open: bool = False
    issued: IssuedKeys | None = field(default=None, repr=False)
    tokens: "IdTokens | None" = field(default=None, repr=False)

    @classmethod
    def of(
        cls, settings: AccessSettings, issued: IssuedKeys | None = None, tokens: "IdTokens | None" = None
    ) -> "Access":
        """The keys that the settings name, and those that were issued; no key at all admits no caller,
        unless OPEN says so."""
        if settings.open:
            log.warning("serves_without_keys", extra={"way_out": "unset UPCYCLE_ACCESS_OPEN"})
        return cls(
            {
                **{key: Caller(name, Role.ROLE_USER) for key, name in settings.users.items()},
                **dict.fromkeys(settings.operator_keys, Caller("operator", Role.ROLE_OPERATOR)),
                **dict.fromkeys(settings.service_keys, Caller("service", Role.ROLE_SERVICE)),
            },
            is_open=settings.open,
            issued=issued,
            tokens=tokens,
        )

    def caller(self, metadata: Any) -> Caller | None:
        """Whose key a call's metadata has; None: no key, an unknown one, or several, of which a proxy might
        have read another one. Each key of the settings is compared, however early one fits, so that the time
        of an answer tells nothing about the keys. Raises Unavailable while it is not known which issued keys
        are valid, or which keys the issuer of tokens has."""
        if self.is_open:
            return UNAUTHENTICATED
        sent = [str(value) for name, value in metadata or () if name == "authorization"]
        given = sent[0] if len(sent) == 1 else ""
        key = given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else ""
        if self.issued is not None and key.startswith(PREFIX):
            return self._issued_to(key, self.issued)
        if self.tokens is not None and is_token(key):
            found = self.tokens.find(key)
            return None if found is None else Caller(found.name, found.role, ends_at=found.ends_at)
        known = [
            caller
            for expected, caller in self.callers.items()
            if hmac.compare_digest(key.encode(errors="surrogatepass"), expected.encode())
        ]
        return known[0] if known else None

    def stands(self, caller: Caller) -> bool:
        """Whether the key or token of a call that goes on is still valid. Raises Unavailable."""
        if caller.ends_at is not None:
            return self.tokens is not None and self.tokens.stands(caller.ends_at)
        return not caller.key_id or self.issued is None or self.issued.stands(caller.key_id)

    @staticmethod
    def _issued_to(key: str, issued: IssuedKeys) -> Caller | None:
        found = issued.find(key)
        if found is None:
            return None
        # The id, as names of keys are neither unique nor short.
        return Caller(f"key:{found.key_id}", found.role, found.key_id, found.scopes)

    def admits(self, caller: Caller, method: str) -> bool:
        """Whether the caller's role may call a method, given as `/package.Service/Method`."""
        return self.is_open or caller.role in callers_of(method)


OPEN: Final = Access(is_open=True)
"""Of a server that every process of its machine may call."""

_current: ContextVar[Caller] = ContextVar("caller", default=UNAUTHENTICATED)
_rpc: ContextVar[str] = ContextVar("rpc", default="")


def current_caller() -> Caller:
    """Who made the call that runs now."""
    return _current.get()


def current_rpc() -> str:
    """`Service/Method` of the call that runs now; "" where none does."""
    return _rpc.get()


def set_caller(caller: Caller, method: str) -> None:
    """For the rest of this call. method: `/package.Service/Method`."""
    _current.set(caller)
    _rpc.set(method.rpartition(".")[2])


def may_decide(caller: Caller) -> bool:
    """Whether what only an operator may do within an rpc that is for users too is allowed."""
    return caller is UNAUTHENTICATED or caller.role == Role.ROLE_OPERATOR


def with_caller(name: str) -> str:
    """A name that a request gives, which is not checked, followed by whose key the call brought: `ada (bob)`.
    As it is where callers bring none."""
    caller = _current.get()
    return name if caller is UNAUTHENTICATED or not name else f"{name} ({caller.name})"


def callers_of(method: str) -> tuple[Role.ValueType, ...]:
    """The roles that may call `/package.Service/Method`, by its contract; empty: none may."""
    service_name, _, name = method.strip("/").rpartition("/")
    try:
        service = descriptor_pool.Default().FindServiceByName(service_name)
    except KeyError:
        return ()
    found: MethodDescriptor | None = service.methods_by_name.get(name)
    if found is None:
        return ()
    own = found.GetOptions().Extensions[access_pb2.callers]
    return tuple(own or service.GetOptions().Extensions[access_pb2.default_callers])
