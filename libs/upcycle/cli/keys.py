"""`upcycle keys …`: keys that an operator makes while the platform runs."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.holds import seconds
from upcycle.cli.models import print_table
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.platform import Platform

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from upcycle.api.keys.v1.service_pb2 import ApiKey

_TIMEOUT_S: Final = 10.0
_VARIABLES: Final = {"user": "UPCYCLE_USER_KEY", "operator": "UPCYCLE_OPERATOR_KEY"}


async def create(
    name: str,
    *,
    role: Literal["user", "operator"],
    expires: str = "",
    scope: Annotated[list[str] | None, Parameter(name="--scope", negative=())] = None,
    as_json: JsonFlag = False,
) -> int:
    """Make a key. It is printed once, on standard output, and kept nowhere.

    :param name: who or what uses it.
    :param role: user (submits runs, reads, reviews) or operator (everything).
    :param expires: 12h, 30d: how long it is valid; by default it does not expire.
    :param scope: platform (commands and clients of the gRPC services), inference (the gateway), or
        inference:MODEL; several times for several. By default platform and inference.
    :param as_json: one JSON line, with the key as `secret`.
    """
    from upcycle.api.common.v1.access_pb2 import Role
    from upcycle.api.keys.v1.service_pb2 import CreateKeyRequest

    expires_in_s = seconds(expires) if expires else None
    request = CreateKeyRequest(
        name=name, role=Role.Value(f"ROLE_{role.upper()}"), scopes=scope or (), expires_in_s=expires_in_s
    )
    async with Platform() as platform:
        made = await platform.keys.CreateKey(request, timeout=_TIMEOUT_S)
    if as_json:
        print_json("key", made)
        return Exit.OK
    print(made.secret)
    human().print(
        f"{_role(made.key)} key {made.key.key_id} of {made.key.name}, {', '.join(made.key.scopes)}, expires "
        f"{_moment(made.key, 'expires_at')}. It is not shown again. Commands read it from "
        f"{_VARIABLES[role]}, the gateway's clients from UPCYCLE_API_KEY"
    )
    return Exit.OK


async def list_keys(
    *, all_: Annotated[bool, Parameter(name="--all")] = False, as_json: JsonFlag = False
) -> int:
    """Valid keys, oldest first. The time of the last use is exact to ten minutes.

    :param all_: those that expired or were revoked, too.
    :param as_json: one JSON line per key.
    """
    from upcycle.api.keys.v1.service_pb2 import ListKeysRequest

    async with Platform() as platform:
        request = ListKeysRequest(include_ended=all_)
        listed = (await platform.keys.ListKeys(request, timeout=_TIMEOUT_S)).keys
    if as_json:
        for key in listed:
            print_json("key", key)
        return Exit.OK
    columns = ("id", "name", "role", "scopes", "made by", "made", "expires", "last used", "revoked")
    print_table(columns, (_row(key) for key in listed))
    return Exit.OK


async def revoke(key_id: str, *, as_json: JsonFlag = False) -> int:
    """End a key: every server refuses it within five seconds, and after restarts too.

    :param key_id: as `upcycle keys list` shows it; a whole key, too.
    :param as_json: one JSON line.
    """
    from upcycle.api.keys.v1.service_pb2 import RevokeKeyRequest

    async with Platform() as platform:
        request = RevokeKeyRequest(key_id=key_id)
        revoked = (await platform.keys.RevokeKey(request, timeout=_TIMEOUT_S)).key
    if as_json:
        print_json("key", revoked)
    else:
        since = _moment(revoked, "revoked_at")
        human().print(
            f"key {revoked.key_id} of {revoked.name} is revoked since {since} by {revoked.revoked_by}"
        )
    return Exit.OK


def _row(key: "ApiKey") -> tuple[str, ...]:
    times = (_moment(key, name) for name in ("created_at", "expires_at", "last_used_at"))
    revoked = f"{_moment(key, 'revoked_at')} by {key.revoked_by}" if key.HasField("revoked_at") else ""
    return (key.key_id, key.name, _role(key), " ".join(key.scopes), key.created_by, *times, revoked)


def _role(key: "ApiKey") -> str:
    from upcycle.api.common.v1.access_pb2 import Role

    return Role.Name(key.role).removeprefix("ROLE_").lower()


def _moment(key: "ApiKey", field: str) -> str:
    moment: Timestamp = getattr(key, field)
    return f"{moment.ToDatetime():%Y-%m-%d %H:%M} UTC" if moment.seconds else "never"
