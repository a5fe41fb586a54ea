"""`upcycle usage`: requests, tokens and cost at the gateway."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.holds import seconds
from upcycle.cli.models import print_table
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.errors import Unavailable, UpcycleError

if TYPE_CHECKING:
    from upcycle.platform import Addresses

_TIMEOUT_S: Final = 30.0
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SUMS: Final = ("requests", "failed", "prompt_tokens", "completion_tokens", "cost")
_SHOWN_CHARS: Final = 300


class UsageRefused(UpcycleError):
    """The gateway refuses to tell its usage; the message is its own."""

    kind = "usage_refused"


async def usage(
    *,
    since: str = "7d",
    by: Annotated[list[Literal["key", "model", "day"]] | None, Parameter(name="--by", negative=())] = None,
    as_json: JsonFlag = False,
) -> int:
    """Requests, tokens and cost at the gateway: of all keys for an operator, else of your own key.

    Asked with UPCYCLE_API_KEY, or with the gateway's key of a local platform. Operators are keys of role
    operator, and the gateway's own keys of scope admin.

    :param since: how far back: 90s, 10m, 2h, 30d; `all` begins with the first request.
    :param by: key, model or day (UTC); several times for several. By default model.
    :param as_json: one JSON line per row.
    """
    from upcycle.platform import find_addresses

    begin = _BEGIN if since == "all" else datetime.now(UTC) - timedelta(seconds=seconds(since))
    asked = {"since": begin.isoformat(), "by": ",".join(by or ("model",))}
    answer = await _asked(find_addresses(), asked)
    rows: list[Mapping[str, Any]] = answer["rows"]
    if as_json:
        for row in rows:
            print_json("usage", {"scope": answer["scope"], "since": answer["since"], **row})
        return Exit.OK
    whose = "all keys" if answer["scope"] == "all" else "your key"
    human().print(f"of {whose}, since {begin:%Y-%m-%d %H:%M} UTC" if since != "all" else f"of {whose}")
    print_table(
        _heading(answer["by"]), [*(_row(row, answer["by"]) for row in rows), *_total(rows, answer["by"])]
    )
    return Exit.OK


async def _asked(addresses: "Addresses", parameters: Mapping[str, str]) -> dict[str, Any]:
    """Raises UsageRefused, Unavailable, PlatformNotFound without a key of the gateway."""
    import httpx2

    url = f"{addresses.gateway_url.removesuffix('/v1')}/upcycle/v1/usage/report"
    headers = {"Authorization": f"Bearer {addresses.gateway_key()}"}
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, headers=headers) as client:
            response = await client.get(url, params=dict(parameters))
    except httpx2.TransportError as error:
        raise Unavailable(f"the gateway at {url} does not answer: {error!r}") from error
    if response.status_code == 200:
        return dict(response.json())
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = response.text[:_SHOWN_CHARS]
    if response.status_code >= 500:
        raise Unavailable(f"the gateway at {url} answered {response.status_code}: {said}")
    hint = addresses.gateway_key_hint() if response.status_code == 401 else ""
    raise UsageRefused(f"the gateway at {url} answered {response.status_code}: {said}", hint)


def _heading(by: Sequence[str]) -> tuple[str, ...]:
    return (*by, "requests", "failed", "tokens in", "tokens out", "cost")


def _row(row: Mapping[str, Any], by: Sequence[str]) -> tuple[str, ...]:
    names = {
        "day": row["day"],
        "key": f"{row['key_id'] or '(none)'} {row['key_name']}".strip(),
        "model": row["model"] or "(none)",
    }
    return (*(names[name] for name in by), *_sums(row))


def _sums(row: Mapping[str, Any]) -> tuple[str, ...]:
    whole = (f"{row[name]:,}" for name in _SUMS[:-1])
    return (*whole, f"{row['cost']:,.4f}" if row["cost"] else "0")


def _total(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[tuple[str, ...]]:
    """A last line, where there is more than one."""
    if len(rows) < 2:
        return []
    return [
        ("total", *("",) * (len(by) - 1), *_sums({name: sum(row[name] for row in rows) for name in _SUMS}))
    ]
