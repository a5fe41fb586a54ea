"""`upcycle bus dead` where nothing but NATS runs."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import nats
import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import MODEL, Seen, fact_spec, failed, running, subscribe
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import Delivery, PoisonMessage
from event_bus.dead_letter_box import DeadLetterBox
from event_bus.topology import EVENTS
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
        async with DeadLetterBox.opened(BusSettings(url=server.url)) as box, asyncio.timeout(60):
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
    assert run(["bus", "dead", "list"]) == Exit.OK
    assert capsys.readouterr().out == "no dead letters\n"
    assert run(["bus", "dead", "list", "--all", "--json"]) == Exit.OK
    assert [line["is_handled"] for line in lines(capsys)] == [True]
    assert run(["bus", "dead", "replay", "1"]) == Exit.USAGE
    assert "dead letter 1 was handled already" in capsys.readouterr().err
    assert run(["bus", "dead", "replay", "77"]) == Exit.USAGE
    assert "there is no dead letter 77" in capsys.readouterr().err
    assert run(["bus", "dead", "replay"]) == Exit.USAGE


def test_a_replay_waits_in_the_stream_for_a_reader_that_is_down(url: str, nats_server: NatsFactory) -> None:
    assert run(["bus", "dead", "replay", "1"]) == Exit.OK
    got: list[tuple[str, str]] = []

    async def mended(delivery: Delivery[Any]) -> None:
        got.append((delivery.event_id, delivery.message.detail))

    async def upgraded() -> None:
        async with running(
            cast(NatsServer, Server(url)), SPEC, setup=lambda bus: subscribe(bus, SPEC, mended)
        ):
            await until(lambda: bool(got))

    asyncio.run(upgraded())
    assert got == [("id-a", "a")]


class Server:
    """What `running` needs of a server."""

    def __init__(self, url: str) -> None:
        self.url = url


async def lose_facts(url: str) -> None:
    """The reader is down while the stream removes what it has not read."""
    client = await nats.connect(url)
    streams = client.jetstream()
    config = (await streams.stream_info(EVENTS)).config
    await streams.update_stream(replace(config, max_msgs=2))
    for index in range(5):
        await streams.publish(f"up.default.evt.episode.failed.{MODEL}", b"{}", headers={"x": str(index)})
    await client.close()
    server = cast(NatsServer, Server(url))
    async with running(server, SPEC, setup=lambda bus: subscribe(bus, SPEC, Seen())):
        pass


def test_a_gap_is_listed_named_by_the_doctor_not_replayed_and_accepted_once(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(lose_facts(url))
    assert run(["bus", "dead", "list", "--json"]) == Exit.OK
    (gap,) = [letter for letter in lines(capsys) if letter["is_gap"]]
    number, said = str(gap["number"]), "EVENTS removed messages 2 to 4 before moody had read all of them"
    assert (gap["reader"], gap["reason"], gap["stream"]) == ("moody", said, "EVENTS")
    run(["doctor", "--json"])
    found = {line["what"]: line for line in lines(capsys)}
    assert found["gap of moody"]["verdict"] == "warn"
    assert f"{said}: upcycle bus dead accept {number}" in found["gap of moody"]["detail"]
    assert run(["bus", "dead", "replay", number]) == Exit.USAGE
    assert "there is no message to replay" in capsys.readouterr().err
    assert run(["bus", "dead", "accept", number, "--json"]) == Exit.OK
    assert [line["number"] for line in lines(capsys)] == [gap["number"]]
    assert run(["bus", "dead", "accept", number]) == Exit.USAGE
    assert f"dead letter {number} was handled already" in capsys.readouterr().err
    assert run(["bus", "dead", "accept", "77"]) == Exit.USAGE
    assert "there is no dead letter 77" in capsys.readouterr().err
    assert run(["bus", "dead", "accept", "1"]) == Exit.OK  # a message that shall not come back
    assert "no [red]such[/red] run" in capsys.readouterr().out
    assert run(["bus", "dead", "list", "--json"]) == Exit.OK
    assert lines(capsys) == []


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


def test_the_doctor_says_what_the_streams_hold_and_what_was_given_up(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["doctor", "--json"])
    found = {line["what"]: line for line in lines(capsys)}
    assert found["dead letters"]["verdict"] == "warn"
    assert found["dead letters"]["detail"].startswith("1 not handled")
    assert found["stream TASKS"]["verdict"] == "ok"
    assert "1 message" in found["stream EVENTS"]["detail"]
    assert "days at this rate; messages are kept 30 days" in found["stream EVENTS"]["detail"]


def test_the_doctor_asks_no_bus_where_none_is_configured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UPCYCLE_BUS_URL", raising=False)
    run(["doctor", "--json"])
    assert not [line for line in lines(capsys) if line["what"] == "bus" or "stream" in line["what"]]
    for command in ("list", "show 1", "accept 1"):
        assert run(["bus", "dead", *command.split()]) == Exit.UNREACHABLE
        assert "no bus is named, and no running platform was found" in capsys.readouterr().err


def test_keys_are_made_renewed_by_name_and_the_old_login_is_kept_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "keys"
    assert run(["bus", "keys", str(folder), "--json"]) == Exit.OK
    (made,) = lines(capsys)
    assert (made["kind"], len(made["keys"])) == ("bus_keys", 10)
    before = {name: Path(path).read_text() for name, path in made["keys"].items()}

    assert run(["bus", "keys", str(folder), "--renew", "reward_grader", "--json"]) == Exit.OK
    (made,) = lines(capsys)
    after = {name: Path(path).read_text() for name, path in made["keys"].items()}
    assert {name for name in after if after[name] != before[name]} == {"reward_grader"}

    monkeypatch.delenv("UPCYCLE_BUS_USER", raising=False)
    assert run(["bus", "keys", str(folder), "--keep-user"]) != Exit.OK
    monkeypatch.setenv("UPCYCLE_BUS_USER", "upcycle")
    monkeypatch.setenv("UPCYCLE_BUS_PASSWORD", "old")
    assert run(["bus", "keys", str(folder), "--keep-user", "--json"]) == Exit.OK
    assert '"password": "old"' in Path(lines(capsys)[-1]["accounts"]).read_text()


def test_a_key_of_no_service_is_not_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bus", "keys", str(tmp_path), "--renew", "grader"]) != Exit.OK
    assert "no key is called 'grader'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
