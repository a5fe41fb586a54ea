"""The server's side of the rights: an account for the streams, and one for each service.

What a service may send is imported into its account, subject by subject; nothing else of the account with the
streams is there. An answer goes to the account that asked. In one account a service could name any subject as
the address of an answer, and so have the server publish there what it must not publish itself: a stored
message under the subject of a grade, for example.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from event_bus.keys import load_or_make
from event_bus.rights import (
    IDENTITIES,
    JETSTREAM_PREFIX,
    OPERATOR,
    PROVISION,
    SERVICE_PREFIX,
    SERVICES,
    Rights,
    rights_of,
)
from event_bus.topology import UPCYCLE, Topology
from identities import subjects
from identities.tenants import ONLY_TENANT, OWN_TENANT
from service_kit.private_files import write_private


def account(name: str) -> str:
    """The account of a service of this tenant, or of its streams; tenants share no account."""
    return name if OWN_TENANT == ONLY_TENANT else f"{OWN_TENANT}-{name}"


STREAMS_ACCOUNT: Final = account("upcycle")
_EXPORTS: Final = (
    subjects.everything(),
    "$JS.ACK.>",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.>",
    "$JS.API.CONSUMER.INFO.*.*",
)
"""Answered once."""
_ANSWERED_OFTEN: Final = "$JS.API.CONSUMER.MSG.NEXT.>"


def accounts_config(
    public_keys: Mapping[str, str], *, login: tuple[str, str] | None = None, topology: Topology = UPCYCLE
) -> str:
    """The `accounts` of a server's configuration file, one line. public_keys: of every identity.

    login: a user with a password who may do everything, for services of 0.3 while they are upgraded.
    """
    return f"accounts: {_json(_accounts(public_keys, login, topology))}"


def write_accounts(folder: Path, *, login: tuple[str, str] | None = None) -> Path:
    """Make the keys that `folder` lacks, and the file that a server's configuration includes; returns it. It
    holds public keys, and where there is a login, its password. Beside it lies what a server of several
    tenants includes between the braces of its `accounts`. Raises BusKeyRefused."""
    keys = load_or_make(folder, IDENTITIES)
    accounts = _accounts(keys, login, UPCYCLE)
    entries = "\n".join(f"{_json(name)}: {_json(one)}" for name, one in accounts.items())
    _write(folder / "nats" / f"{OWN_TENANT}.accounts", entries, is_secret=login is not None)
    path = folder / "nats" / "accounts.conf"
    _write(path, accounts_config(keys, login=login), is_secret=login is not None)
    return path


def _accounts(
    public_keys: Mapping[str, str], login: tuple[str, str] | None, topology: Topology
) -> dict[str, Any]:
    accounts = {STREAMS_ACCOUNT: _streams(public_keys, login)}
    return accounts | {
        account(name): _service(rights_of(name, topology), public_keys[name]) for name in SERVICES
    }


def _json(value: Any) -> str:
    """For the server's parser, which knows no \\uXXXX."""
    return json.dumps(value, ensure_ascii=False)


def _write(path: Path, text: str, *, is_secret: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, f"{text}\n".encode(), 0o640 if is_secret else 0o644)


def _streams(public_keys: Mapping[str, str], login: tuple[str, str] | None) -> dict[str, Any]:
    users: list[dict[str, Any]] = [{"nkey": public_keys[name]} for name in (PROVISION, OPERATOR)]
    if login is not None:
        users.append({"user": login[0], "password": login[1]})
    often = {"service": _ANSWERED_OFTEN, "response_type": "stream"}
    return {
        "jetstream": "enabled",
        "users": users,
        "exports": [*({"service": subject} for subject in _EXPORTS), often],
    }


def _service(rights: Rights, public_key: str) -> dict[str, Any]:
    user: dict[str, Any] = {"nkey": public_key}
    if rights.never:
        user["permissions"] = {"publish": {"deny": [*map(local, rights.never)]}}
    sends = (*rights.publishes, *rights.asks, *rights.pulls)
    return {"users": [user], "imports": [*map(_import, sends)]}


def _import(subject: str) -> dict[str, Any]:
    there = {"service": {"account": STREAMS_ACCOUNT, "subject": subject}}
    return there if local(subject) == subject else {**there, "to": local(subject)}


def local(subject: str) -> str:
    """What a subject of the account with the streams is called in that of a service: there, JetStream's own
    prefix means the JetStream of the service's account, which has none."""
    return subject.replace(JETSTREAM_PREFIX, SERVICE_PREFIX, 1) if _is_of_jetstream(subject) else subject


def _is_of_jetstream(subject: str) -> bool:
    return subject.startswith(f"{JETSTREAM_PREFIX}.")
