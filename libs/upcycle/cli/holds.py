"""`upcycle models hold`, `holds`, `release`: versions that an engine serves beside what it follows."""

import asyncio
import getpass
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.models import print_table
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.errors import Unavailable, UpcycleError
from upcycle.model_names import named_version
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import EngineLease, PolicyHold

_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TIMEOUT_S: Final = 10.0
_LOADED_S: Final = 60.0
_LOOK_S: Final = 0.3


class DurationInvalid(UpcycleError, ValueError):
    """No length of time."""

    kind = "duration_invalid"


async def hold(
    policy: str,
    *,
    for_: Annotated[str, Parameter(name="--for")] = "10m",
    holder: str = "",
    as_json: JsonFlag = False,
) -> int:
    """Have an engine of the model's base serve POLICY beside what it follows, and wait until it does.

    The gateway then answers for `slug@v12`. The same again extends the hold.

    :param policy: SLUG@v12, SLUG@CHECKPOINT, or SLUG for its head.
    :param for_: how long: 90s, 10m, 2h; at most a day.
    :param holder: who needs it, for those who find no room; by default your user name.
    :param as_json: one JSON line.
    """
    from upcycle.api.registry.v1.service_pb2 import HoldPolicyRequest

    named, who = named_version(policy), holder or getpass.getuser()
    request = HoldPolicyRequest(model=named.model, version=named.version, ttl_s=seconds(for_), holder=who)
    async with Platform() as platform:
        held = (await platform.registry.HoldPolicy(request, timeout=_TIMEOUT_S)).hold
        await until_served(platform, held)
    if as_json:
        print_json("hold", held)
    else:
        human().print(f"{_name(held)} is served by {held.engine_id} until {_until(held)}")
    return Exit.OK


async def holds(model: str = "", *, as_json: JsonFlag = False) -> int:
    """What engines hold, for which holder and until when.

    :param model: slug; by default all models.
    :param as_json: one JSON line per hold.
    """
    from upcycle.api.registry.v1.service_pb2 import ListHoldsRequest

    async with Platform() as platform:
        listed = (await platform.registry.ListHolds(ListHoldsRequest(model=model), timeout=_TIMEOUT_S)).holds
    if as_json:
        for one in listed:
            print_json("hold", one)
        return Exit.OK
    rows = ((_name(one), one.holder, one.engine_id, _until(one)) for one in listed)
    print_table(("held", "for", "engine", "until"), rows)
    return Exit.OK


async def release(policy: str, *, holder: str = "", as_json: JsonFlag = False) -> int:
    """End a hold before its time.

    :param policy: SLUG@v12 or SLUG@CHECKPOINT.
    :param holder: who holds it; by default your user name.
    :param as_json: one JSON line.
    """
    from upcycle.api.registry.v1.service_pb2 import ReleasePolicyRequest

    named, who = named_version(policy), holder or getpass.getuser()
    if named.version is None:
        raise UpcycleError(f"{policy!r} names no version", "`upcycle models holds` lists what is held")
    request = ReleasePolicyRequest(model=named.model, version=named.version, holder=who)
    async with Platform() as platform:
        answer = await platform.registry.ReleasePolicy(request, timeout=_TIMEOUT_S)
    if as_json:
        print_json("released", answer)
    else:
        done = "is released" if answer.released else "was not held"
        human().print(f"{named.model}@v{named.version} {done} for {who!r}", markup=False)
    return Exit.OK


def seconds(text: str) -> float:
    """Of `90s`, `10m`, `2h`, `30d`. Raises DurationInvalid."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise DurationInvalid(f"{text!r} is no length of time", "write 90s, 10m, 2h or 30d")
    return float(found[1]) * _UNITS_S[found[2]]


async def until_served(
    platform: Platform,
    held: "PolicyHold",
    *,
    way_out: str = "the hold stands; `upcycle models release` ends it",
) -> None:
    """Wait until the engine has loaded the version. Raises Unavailable after a minute, with what the engine
    says and the way out."""
    give_up_at, said = time.monotonic() + _LOADED_S, "its lease does not name it yet"
    while time.monotonic() < give_up_at:
        mine = await _engines(platform, held)
        if any(_serves(engine, held) for engine in mine):
            return
        said = "; ".join(_failures(mine, held)) or said
        await asyncio.sleep(_LOOK_S)
    raise Unavailable(f"{_name(held)} to be loaded by {held.engine_id}: {said}", hint=way_out)


async def _engines(platform: Platform, held: "PolicyHold") -> "list[EngineLease]":
    """The engine of a hold; none where its lease has lapsed."""
    from upcycle.api.registry.v1.service_pb2 import ListEnginesRequest

    engines = (await platform.registry.ListEngines(ListEnginesRequest(), timeout=_TIMEOUT_S)).engines
    return [one for one in engines if one.engine_id == held.engine_id]


def _serves(engine: "EngineLease", held: "PolicyHold") -> bool:
    own = {(engine.model, version) for version in engine.held_versions}
    return (held.model, held.version) in own | {(one.model, one.version) for one in engine.held_policies}


def _failures(engines: "Iterable[EngineLease]", held: "PolicyHold") -> list[str]:
    return [
        one.detail
        for engine in engines
        for one in engine.hold_failures
        if (one.model, one.version) == (held.model, held.version)
    ]


def _name(held: "PolicyHold") -> str:
    return f"{held.model}@v{held.version}"


def _until(held: "PolicyHold") -> str:
    return f"{held.expires_at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
