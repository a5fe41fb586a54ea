"""Commands for API keys: they open the gateway's database, beside the running gateway if need be."""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Sequence

from model_gateway.adapters.database import SERVICE
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.domain.calls import read_target
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.keys import INFERENCE, SCOPES
from model_gateway.domain.limits import KeyLimits
from model_gateway.settings import ModelGatewaySettings
from service_kit.clock import utc_now
from service_kit.settings import SettingsError, load_settings
from sql_store import MigratedDatabase, MigrationFailed, UnsupportedDatabase
from upcycle.errors import Unavailable

COMMANDS = ("create-key", "list-keys", "revoke-key", "set-capture", "set-limits")
_EXIT_FAILED, _EXIT_USAGE = 1, 2


class NoDatabase(Exception):
    """The commands write into the database of a gateway, and there is none."""


def run_command(argv: Sequence[str]) -> int:
    """One of COMMANDS with its arguments. The result goes to stdout, everything else to stderr.

    Exit status: 0 done; 1 the database refused, or there is no such key; 2 wrong arguments or settings, or
    there is no database: only the gateway makes one.
    """
    arguments = _parser().parse_args(argv)
    try:
        settings = load_settings(ModelGatewaySettings, program="upcycle-model-gateway")
        return asyncio.run(_run(arguments, settings))
    except (SettingsError, GatewayError, NoDatabase, ValueError) as error:
        print(error, file=sys.stderr)
        return _EXIT_USAGE
    except (MigrationFailed, UnsupportedDatabase, Unavailable) as error:
        print(error, file=sys.stderr)
        return _EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="upcycle-model-gateway")
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create-key", help="make a key; it is shown once")
    create.add_argument("--name", required=True, help="who or what uses it")
    create.add_argument("--models", default="", help="comma-separated slugs it may use; empty: all")
    create.add_argument(
        "--scopes",
        default=INFERENCE,
        help=f"comma-separated: {', '.join(SCOPES)}; admin reads the usage of all keys",
    )
    create.add_argument("--may-capture", action="store_true", help="its holder agreed to capture of traffic")
    _add_limits(create)
    commands.add_parser("list-keys", help="one JSON line per key")
    revoke = commands.add_parser("revoke-key", help="end a key within seconds")
    revoke.add_argument("key_id")
    capture = commands.add_parser("set-capture", help="whether a share of its traffic may be recorded")
    capture.add_argument("key_id")
    capture.add_argument("may_capture", choices=("on", "off"))
    limits = commands.add_parser("set-limits", help="what it may use, in place of what was set before")
    limits.add_argument("key_id")
    _add_limits(limits)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """One that is left out is that of the settings (`MODEL_GATEWAY_KEY_...`)."""
    for name in ("requests-per-minute", "tokens-per-minute", "concurrency"):
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument(
        "--cost-per-day", type=float, metavar="N", help="by the prices of the providers' file"
    )


def _limits(arguments: argparse.Namespace) -> KeyLimits:
    """Raises ValueError."""
    limits = KeyLimits(
        arguments.requests_per_minute,
        arguments.tokens_per_minute,
        arguments.concurrency,
        arguments.cost_per_day,
    )
    for name, value in limits.to_json().items():
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; give a number above 0")
    return limits


async def _run(arguments: argparse.Namespace, settings: ModelGatewaySettings) -> int:
    database = MigratedDatabase(settings.sql.url_for(SERVICE), SERVICE)
    try:
        await _require_tables(database)
        await database.start()
        keys = SqlKeyStore(database)
        if arguments.command == "create-key":
            return await _create(keys, arguments, database.shown)
        if arguments.command == "list-keys":
            return await _list(keys)
        if arguments.command == "set-capture":
            return await _set_capture(keys, arguments, database.shown)
        if arguments.command == "set-limits":
            return await _set_limits(keys, arguments, database.shown)
        return await _revoke(keys, arguments.key_id, database.shown)
    finally:
        await database.stop()


async def _require_tables(database: MigratedDatabase) -> None:
    """Raises NoDatabase: tables that a command makes may be those of another program's version, in a database
    that no gateway reads."""
    if await database.has_tables():
        return
    where = database.missing_file or database.shown
    raise NoDatabase(
        f"there is no database of a gateway at {where}, and none was made; UPCYCLE_SQL_DATA_DIR "
        "(.upcycle/up/sql of a platform of `upcycle up`) or UPCYCLE_SQL_URL names that of your gateway, "
        "which makes its tables when it starts"
    )


async def _create(keys: SqlKeyStore, arguments: argparse.Namespace, database: str) -> int:
    scopes, models = _words(arguments.scopes), _words(arguments.models)
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise ValueError(f"unknown scope {unknown[0]!r}; scopes are {', '.join(SCOPES)}")
    for model in models:
        if str(read_target(model)) != model or "@" in model:
            raise ValueError(f"--models takes slugs without a version, got {model!r}")
    made, text = await keys.create(
        arguments.name,
        scopes=scopes,
        models=models,
        now=utc_now(),
        may_capture=arguments.may_capture,
        limits=_limits(arguments),
    )
    print(text)
    print(
        f"key {made.key_id} of {made.name} is in the database {database}, and valid at the gateway of that "
        "database alone: UPCYCLE_SQL_URL or UPCYCLE_SQL_DATA_DIR names another",
        file=sys.stderr,
    )
    return 0


async def _list(keys: SqlKeyStore) -> int:
    for key in await keys.all():
        line = {
            "key_id": key.key_id,
            "name": key.name,
            "scopes": sorted(key.scopes),
            "models": sorted(key.models),
            "created_at": key.created_at.isoformat(),
            "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
            "may_capture": key.may_capture,
            "limits": key.limits.to_json(),
        }
        print(json.dumps(line))
    return 0


async def _revoke(keys: SqlKeyStore, key_id: str, database: str) -> int:
    if await keys.revoke(key_id, utc_now()):
        print(f"revoked {key_id}", file=sys.stderr)
        return 0
    print(_no_key(key_id, database, " that could be revoked"), file=sys.stderr)
    return _EXIT_FAILED


def _no_key(key_id: str, database: str, which: str = "") -> str:
    return f"no key {key_id!r}{which} in the database {database}; list-keys shows all"


async def _set_capture(keys: SqlKeyStore, arguments: argparse.Namespace, database: str) -> int:
    key_id, may_capture = arguments.key_id, arguments.may_capture == "on"
    if await keys.set_capture(key_id, may_capture):
        print(f"traffic of {key_id} {'may' if may_capture else 'must not'} be captured", file=sys.stderr)
        return 0
    print(_no_key(key_id, database), file=sys.stderr)
    return _EXIT_FAILED


async def _set_limits(keys: SqlKeyStore, arguments: argparse.Namespace, database: str) -> int:
    limits = _limits(arguments)
    if await keys.set_limits(arguments.key_id, limits):
        print(f"limits of {arguments.key_id}: {json.dumps(limits.to_json())}", file=sys.stderr)
        return 0
    print(_no_key(arguments.key_id, database), file=sys.stderr)
    return _EXIT_FAILED


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
