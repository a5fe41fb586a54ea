"""Commands for API keys: they open the gateway's database, beside the running gateway if need be."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from model_gateway.adapters.database import SERVICE
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.domain.calls import read_target
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.keys import INFERENCE, SCOPES
from model_gateway.settings import ModelGatewaySettings
from service_kit.clock import utc_now
from service_kit.settings import SettingsError, load_settings
from sql_store import MigratedDatabase, MigrationFailed, UnsupportedDatabase
from upcycle.errors import Unavailable

COMMANDS = ("create-key", "list-keys", "revoke-key")
_EXIT_FAILED, _EXIT_USAGE = 1, 2


def run_command(argv: Sequence[str]) -> int:
    """One of COMMANDS with its arguments. The result goes to stdout, everything else to stderr.

    Exit status: 0 done; 1 the database refused, or there is no such key; 2 wrong arguments or settings.
    """
    arguments = _parser().parse_args(argv)
    try:
        settings = load_settings(ModelGatewaySettings, program="upcycle-model-gateway")
        return asyncio.run(_run(arguments, settings))
    except (SettingsError, GatewayError, ValueError) as error:
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
    create.add_argument("--scopes", default=INFERENCE, help=f"comma-separated: {', '.join(SCOPES)}")
    commands.add_parser("list-keys", help="one JSON line per key")
    revoke = commands.add_parser("revoke-key", help="end a key within seconds")
    revoke.add_argument("key_id")
    return parser


async def _run(arguments: argparse.Namespace, settings: ModelGatewaySettings) -> int:
    database = MigratedDatabase(settings.sql.url_for(SERVICE), SERVICE)
    await database.start()
    try:
        keys = SqlKeyStore(database)
        if arguments.command == "create-key":
            return await _create(keys, arguments)
        if arguments.command == "list-keys":
            return await _list(keys)
        return await _revoke(keys, arguments.key_id)
    finally:
        await database.stop()


async def _create(keys: SqlKeyStore, arguments: argparse.Namespace) -> int:
    scopes, models = _words(arguments.scopes), _words(arguments.models)
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise ValueError(f"unknown scope {unknown[0]!r}; scopes are {', '.join(SCOPES)}")
    for model in models:
        if str(read_target(model)) != model or "@" in model:
            raise ValueError(f"--models takes slugs without a version, got {model!r}")
    _, text = await keys.create(arguments.name, scopes=scopes, models=models, now=utc_now())
    print(text)
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
        }
        print(json.dumps(line))
    return 0


async def _revoke(keys: SqlKeyStore, key_id: str) -> int:
    if await keys.revoke(key_id, utc_now()):
        print(f"revoked {key_id}", file=sys.stderr)
        return 0
    print(f"no key {key_id!r} that could be revoked; list-keys shows all", file=sys.stderr)
    return _EXIT_FAILED


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
