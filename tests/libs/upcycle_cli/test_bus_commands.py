"""`upcycle bus dead` where nothing but NATS runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import MODEL, fact_spec, failed, running, subscribe
from tests.support.waiting import until

from event_bus import Delivery, PoisonMessage
from event_bus.dead_letter_box import DeadLetterBox
from service_kit.groups import BusSettings
from upcycle.cli.exits import Exit
from upcycle.cli.main import run

SPEC = fact_spec("moody")


@pytest.fixture
def url(nats_server: NatsFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Of a server that a reader left with one dead letter, number 1."""
    server = nats_server()
    asyncio.run(one_letter(server))
    monkeypatch.setenv("UPCYCLE_BUS_URL", server.url)
    monkeypatch.chdir(tmp_path)
    return server.url


async def one_letter(server: Any) -> None:
    async def gives_up(_: Delivery[Any]) -> None:
        raise PoisonMessage("no [red]such[/red] run")

    async with running(server, SPEC, setup=lambda bus: subscribe(bus, SPEC, gives_up)) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        async with DeadLetterBox.opened(BusSettings(url=server.url)) as box, asyncio.timeout(10):
            while not await box.letters(limit=1):
                await asyncio.sleep(0.02)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dead_letters_are_listed_shown_replayed_once_and_refused_by_name(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bus", "dead", "list"]) == Exit.OK
    said = capsys.readouterr().out
    assert "moody" in said
    assert "no [red]such[/red] run" in said  # text of a message is no markup
    assert run(["bus", "dead", "list", "--json"]) == Exit.OK
    (letter,) = lines(capsys)
    assert (letter["kind"], letter["number"], letter["event_id"]) == ("dead_letter", 1, "id-a")
    assert run(["bus", "dead", "show", "1", "--json"]) == Exit.OK
    (shown,) = lines(capsys)
    assert json.loads(shown["message"])["detail"] == "a"
    assert shown["headers"]["Nats-Msg-Id"] == "id-a"
    assert run(["bus", "dead", "show", "1"]) == Exit.OK
    assert '"detail": "a"' in capsys.readouterr().out
    assert run(["bus", "dead", "replay", "1", "--json"]) == Exit.OK
    assert [line["kind"] for line in lines(capsys)] == ["replayed"]
    assert run(["bus", "dead", "list", "--json"]) == Exit.OK
    assert lines(capsys) == []
    assert run(["bus", "dead", "list", "--all", "--json"]) == Exit.OK
    assert [line["is_handled"] for line in lines(capsys)] == [True]
    assert run(["bus", "dead", "replay", "1"]) == Exit.USAGE
    assert "dead letter 1 was replayed already" in capsys.readouterr().err
    assert run(["bus", "dead", "replay", "77"]) == Exit.USAGE
    assert "there is no dead letter 77" in capsys.readouterr().err
    assert run(["bus", "dead", "replay"]) == Exit.USAGE


def test_a_replay_waits_in_the_stream_for_a_reader_that_is_down(url: str, nats_server: NatsFactory) -> None:
    assert run(["bus", "dead", "replay", "1"]) == Exit.OK
    got: list[tuple[str, str]] = []

    async def mended(delivery: Delivery[Any]) -> None:
        got.append((delivery.event_id, delivery.message.detail))

    async def upgraded() -> None:
        async with running(Server(url), SPEC, setup=lambda bus: subscribe(bus, SPEC, mended)):
            await until(lambda: bool(got))

    asyncio.run(upgraded())
    assert got == [("id-a", "a")]


class Server:
    """What `running` needs of a server."""

    def __init__(self, url: str) -> None:
        self.url = url


def test_what_keeps_it_from_working_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("event_bus.connection._CONNECT_S", 0.3)
    monkeypatch.setenv("UPCYCLE_BUS_URL", "nats://127.0.0.1:1")
    assert run(["bus", "dead", "list"]) == Exit.UNREACHABLE
    assert "no NATS at nats://127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setenv("UPCYCLE_BUS_URL", "http://127.0.0.1:1")
    assert run(["bus", "dead", "list"]) == Exit.USAGE
    assert "must start with nats://" in capsys.readouterr().err
