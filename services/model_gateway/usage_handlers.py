"""Usage over HTTP: of the key that asks by model, with its limits; and reports by day, key and model, which
keys of scope admin get of all keys."""

from dataclasses import asdict
from datetime import timedelta
from typing import Final

from aiohttp import web

from model_gateway.adapters.sql_usage import SqlUsage
from model_gateway.domain.errors import BadRequest, UsageUnavailable
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.openapi import USAGE, USAGE_REPORT
from model_gateway.domain.usage_reports import read_query
from model_gateway.http_errors import json_response
from model_gateway.ports import Clock
from model_gateway.usecases.access import KeyAccess
from model_gateway.usecases.limiting import LimitKeys
from upcycle.errors import Unavailable

_DAYS: Final = 1
_MAX_DAYS: Final = 366


class UsageHandlers:
    """`GET /upcycle/v1/usage?days=1`: whole days in UTC, today included. `GET /upcycle/v1/usage/report
    ?since=2026-11-20&by=key,model`."""

    def __init__(self, access: KeyAccess, usage: SqlUsage, limiting: LimitKeys, now: Clock) -> None:
        self._access = access
        self._usage = usage
        self._limiting = limiting
        self._now = now

    def register(self, app: web.Application) -> None:
        """Adds the routes."""
        app.router.add_get(USAGE.path, self.usage)
        app.router.add_get(USAGE_REPORT.path, self.report)

    async def usage(self, request: web.Request) -> web.Response:
        """By model. Rows of the last half second may be missing."""
        key = await self._authenticated(request)
        now = self._now()
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        since = today - timedelta(days=_days(request) - 1)
        try:
            models = await self._usage.by_model(key.key_id, since)
            spent = await self._usage.spent_today(key.key_id, now)
        except Unavailable as error:
            raise UsageUnavailable(f"usage cannot be read now: {error}") from error
        rows = [
            {
                "model": one.model,
                "requests": one.requests,
                "prompt_tokens": one.prompt_tokens,
                "completion_tokens": one.completion_tokens,
                "cost": one.cost,
            }
            for one in models
        ]
        return json_response(
            {
                "key_id": key.key_id,
                "since": since.isoformat(),
                "models": rows,
                "cost": sum(one.cost for one in models),
                "cost_today": spent,
                **self._limiting.standing(key),
            }
        )

    async def report(self, request: web.Request) -> web.Response:
        """Requests, tokens and cost of all keys, or of the key that asks."""
        key, now = await self._authenticated(request), self._now()
        query = read_query(request.query, key, now)
        try:
            rows = await self._usage.report(query)
        except Unavailable as error:
            raise UsageUnavailable(f"usage cannot be read now: {error}") from error
        return json_response(
            {
                "scope": query.scope,
                "since": query.since.isoformat(),
                "until": now.isoformat(),
                "by": query.by,
                "rows": [asdict(row) for row in rows],
            }
        )

    async def _authenticated(self, request: web.Request) -> ApiKey:
        headers = request.headers
        return await self._access.authenticate(headers.get("Authorization"), headers.get("X-Api-Key"))


def _days(request: web.Request) -> int:
    said = request.query.get("days", str(_DAYS))
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= _MAX_DAYS:
        raise BadRequest(f"days is {said!r:.40}, expected an integer from 1 to {_MAX_DAYS}", param="days")
    return int(said)
