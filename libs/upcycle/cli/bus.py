"""`upcycle bus dead list|show|replay|accept`: what readers of the bus gave up. `upcycle bus keys`."""

import json
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json, result_console
from upcycle.cli.platform_needed import require_platform
from upcycle.errors import UpcycleError
from upcycle.platform import PlatformNotFound, running_stack

if TYPE_CHECKING:
    from event_bus.dead_letter_box import DeadLetter, DeadLetterBox
    from service_kit.groups import BusSettings


class BusSettingsInvalid(UpcycleError, ValueError):
    """A variable UPCYCLE_BUS_* cannot be used."""

    kind = "settings_invalid"


def bus_settings() -> "BusSettings":
    """UPCYCLE_BUS_*; without UPCYCLE_BUS_URL the NATS of the nearest running `upcycle up`. Raises
    BusSettingsInvalid, PlatformNotFound."""
    from service_kit.groups import BusSettings
    from service_kit.settings import SettingsError, load_settings

    try:
        settings = load_settings(BusSettings, program="upcycle bus")
    except SettingsError as error:
        raise BusSettingsInvalid(str(error)) from error
    if "url" in settings.model_fields_set:
        return settings
    if (found := running_stack()) is None:
        raise PlatformNotFound(
            f"no bus is named, and no running platform was found from {Path.cwd()} upwards",
            "set UPCYCLE_BUS_URL, or go to the folder of `upcycle up`",
        )
    state = found[1]
    if (key := state["bus"].get("nkey")) is not None:
        return BusSettings(url=state["bus"]["url"], nkey=Path(key))
    secrets = json.loads(Path(state["credentials_file"]).read_text())
    login = {"user": secrets["bus_user"], "password": secrets["bus_password"]}
    return BusSettings(url=state["bus"]["url"], **login)


def knows_a_bus() -> bool:
    """Whether a bus is configured, or runs with the nearest `upcycle up`."""
    return "UPCYCLE_BUS_URL" in os.environ or running_stack() is not None


async def holdings() -> list[tuple[str, bool, str]]:
    """Per stream, and for the dead letters: (name, whether it is well, one sentence). Raises Unavailable,
    BusSettingsInvalid."""
    from event_bus.dead_letter_box import DeadLetterBox
    from event_bus.holdings import held

    settings = bus_settings()
    found = [(f"stream {one.name}", one.is_well, one.text) for one in await held(settings)]
    async with DeadLetterBox.opened(settings) as box:
        letters = await box.letters(limit=1000)
    found += [(f"gap of {one.reader}", False, _gap(one)) for one in letters if one.is_gap]
    num_open = sum(not one.is_gap for one in letters)
    detail = f"{num_open} not handled" + (": see upcycle bus dead list" if num_open else "")
    return [*found, ("dead letters", num_open == 0, detail)]


async def list_dead(*, limit: int = 20, all: bool = False, as_json: JsonFlag = False) -> int:
    """List dead letters, the newest last.

    :param limit: list at most so many.
    :param all: those that were replayed or accepted too.
    :param as_json: one JSON line per dead letter.
    """
    async with _opened() as box:
        letters = await box.letters(limit=limit, with_handled=all)
    if as_json:
        for letter in letters:
            print_json("dead_letter", _fields(letter))
    elif letters:
        result_console().print(_table(letters))
    else:
        result_console().print("no dead letters")
    return Exit.OK


async def show_dead(number: int, *, as_json: JsonFlag = False) -> int:
    """Show dead letter NUMBER.

    :param number: as `list` names it.
    :param as_json: print one JSON line instead of text.
    """
    async with _opened() as box:
        content = await box.content(number)
    message = content.payload.decode(errors="replace")
    if as_json:
        fields = {**_fields(content.letter), "headers": dict(content.headers), "message": message}
        print_json("dead_letter", fields)
        return Exit.OK
    for name, value in {**_fields(content.letter), **content.headers, "message": message}.items():
        result_console().print(f"{name:<18} {value}", markup=False, soft_wrap=True)
    return Exit.OK


async def replay_dead(number: int, *more: int, as_json: JsonFlag = False) -> int:
    """Replay dead letter NUMBER, and MORE: the reader that gave each up, and no other, gets it again with its
    id, headers and body. It is handled then; what fails again is a new dead letter.

    :param number: as `list` names it.
    :param more: more numbers. The first that cannot be replayed ends the command.
    :param as_json: one JSON line per replayed dead letter.
    """
    async with _opened() as box:
        for one in (number, *more):
            letter = await box.replay(one)
            what = f"{letter.subject} {letter.event_id} goes to {letter.reader} again"
            _say_handled("replayed", letter, f"dead letter {one}: {what}", as_json=as_json)
    return Exit.OK


async def accept_dead(number: int, *more: int, as_json: JsonFlag = False) -> int:
    """Accept dead letter NUMBER, and MORE, without a replay: what each says is lost stays lost. A reader that
    is not ready because of a gap is ready again within ten seconds.

    :param number: as `list` names it.
    :param more: more numbers. The first that cannot be accepted ends the command.
    :param as_json: one JSON line per accepted dead letter.
    """
    async with _opened() as box:
        for one in (number, *more):
            letter = await box.accept(one)
            text = f"dead letter {one}: accepted, {letter.reader}: {letter.reason}"
            _say_handled("accepted", letter, text, as_json=as_json)
    return Exit.OK


async def make_keys(
    folder: Path, *, renew: tuple[str, ...] = (), keep_user: bool = False, as_json: JsonFlag = False
) -> int:
    """Make a key of NATS for each service that has none in FOLDER, and what the server has to know.

    FOLDER/NAME/bus.nk is for UPCYCLE_BUS_NKEY of that service's processes, and for no other.
    FOLDER/nats/accounts.conf belongs into the server's configuration: `include accounts.conf`.

    :param folder: is made where it is missing.
    :param renew: a name whose key is replaced; repeat it for more.
    :param keep_user: the server lets UPCYCLE_BUS_USER with UPCYCLE_BUS_PASSWORD in as well, which may do all:
        while the services get their keys.
    :param as_json: print one JSON line instead of text.
    """
    require_platform("bus")
    from event_bus.accounts import write_accounts
    from event_bus.keys import renew as renewed
    from event_bus.keys import seed_file
    from event_bus.rights import IDENTITIES

    if unknown := sorted({*renew} - {*IDENTITIES}):
        raise BusSettingsInvalid(f"no key is called {unknown[0]!r}", f"there are: {', '.join(IDENTITIES)}")
    login = _login_to_keep() if keep_user else None
    for name in renew:
        renewed(folder, name)
    config = write_accounts(folder, login=login)
    keys = {name: str(seed_file(folder.absolute(), name)) for name in IDENTITIES}
    if as_json:
        print_json("bus_keys", {"keys": keys, "accounts": str(config.absolute()), "renewed": list(renew)})
        return Exit.OK
    for name, path in keys.items():
        result_console().print(f"{name:<20} {path}", markup=False, soft_wrap=True)
    result_console().print(f"{'the server':<20} {config.absolute()}", markup=False, soft_wrap=True)
    return Exit.OK


def _login_to_keep() -> tuple[str, str]:
    """Of the environment. Raises BusSettingsInvalid."""
    user, password = os.environ.get("UPCYCLE_BUS_USER"), os.environ.get("UPCYCLE_BUS_PASSWORD")
    if not user or not password:
        raise BusSettingsInvalid(
            "which user is kept?", "set UPCYCLE_BUS_USER and UPCYCLE_BUS_PASSWORD as the services have them"
        )
    return user, password


def _opened() -> AbstractAsyncContextManager["DeadLetterBox"]:
    require_platform("bus")
    from event_bus.dead_letter_box import DeadLetterBox

    return DeadLetterBox.opened(bus_settings())


def _say_handled(event: str, letter: "DeadLetter", text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(event, _fields(letter))
    else:
        result_console().print(text, markup=False, soft_wrap=True)


def _gap(letter: "DeadLetter") -> str:
    return f"{letter.reason}: upcycle bus dead accept {letter.number}, when you know what it cost"


def _fields(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "number": letter.number,
        "at": letter.at.isoformat(timespec="seconds"),
        "reader": letter.reader,
        "reason": letter.reason,
        "subject": letter.subject,
        "event_id": letter.event_id,
        "stream": letter.stream,
        "sequence": letter.sequence,
        "deliveries": letter.deliveries,
        "is_handled": letter.is_handled,
        "is_gap": letter.is_gap,
    }


def _table(letters: "list[DeadLetter]") -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table("number", "at", "reader", "subject", "handled", "reason", box=None)
    for letter in letters:
        at, handled = f"{letter.at:%Y-%m-%d %H:%M:%S}", "yes" if letter.is_handled else ""
        row = (str(letter.number), at, letter.reader, letter.subject, handled, letter.reason[:200])
        table.add_row(*map(Text, row))  # what is in a message is text, never markup
    return table
