"""Labels that clients give to the sessions that they open: kept with them, fixed, refused by name."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import insert
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.engine_double import EngineDouble
from tests.services.model_gateway.test_recorded_sessions import (
    ASK,
    MODEL,
    facts_of,
    fresh,
    recorded,
    refused,
    rows,
)
from tests.services.model_gateway.test_session_bounds import START, call_of, rows_of
from tests.services.released_tables import migrate_to

from model_gateway.adapters import tables
from model_gateway.adapters.sql_sessions import SqlSessions
from model_gateway.domain.sessions import OtherLabels, SessionBounds, SessionKey
from service_kit.groups import S3Settings
from sql_store import Database, migrate
from upcycle.api.trajectory.v1.events_pb2 import RecordedSessionOpened, TrajectoryRecorded

LABELS = ["env:prod", "flow:refund"]


@pytest.fixture
def changes() -> dict[str, Any]:
    return {"session_idle_s": 1.0}


@pytest.mark.parametrize("way", ["header", "metadata", "both"])
async def test_a_session_has_the_labels_of_its_first_call_everywhere(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, way: str
) -> None:
    session_id = fresh("labelled")
    more: dict[str, Any] = {"extra_headers": {"X-Session-ID": session_id}}
    if way != "metadata":
        more["extra_headers"]["X-Session-Labels"] = "flow=refund, env=prod"
    if way != "header":
        more["metadata"] = {"upcycle_labels": "env=prod,flow=refund"}
    client = gateway.client()
    await client.chat.completions.create(model=MODEL, messages=ASK, **more)
    named: Any = {"extra_headers": {"X-Session-ID": session_id}}
    await client.chat.completions.create(model=MODEL, messages=ASK, **named)
    await client.chat.completions.create(model=MODEL, messages=ASK, **more)
    assert await rows(gateway, "select labels, num_calls from recorded_session") == [
        {"labels": ",".join(LABELS), "num_calls": 3}
    ]
    body = await recorded(gateway, s3_settings, session_id)
    assert list(body.episode.labels) == LABELS
    for kind in (RecordedSessionOpened, TrajectoryRecorded):
        (fact,) = await facts_of(gateway, kind, session_id)
        assert list(fact.episode.labels) == LABELS


@pytest.mark.parametrize("changes", [{"session_idle_s": 600.0}])
@pytest.mark.parametrize(("opened_with", "has"), [("flow=refund", "flow:refund"), ("", "none")])
async def test_another_value_later_is_refused_by_name_and_the_session_goes_on(
    gateway: Gateway, served: EngineDouble, changes: dict[str, Any], opened_with: str, has: str
) -> None:
    session_id = fresh("fixed")
    headers = {"X-Session-ID": session_id}
    client = gateway.client(default_headers=headers)
    ask = client.chat.completions.create
    await ask(model=MODEL, messages=ASK, extra_headers={"X-Session-Labels": opened_with})
    error = await refused(
        lambda: ask(model=MODEL, messages=ASK, extra_headers={"X-Session-Labels": "flow=sale"})
    )
    assert (error.status_code, error.code) == (409, "session_of_other_labels")
    assert f"was opened with labels {has}, and this call gives flow:sale" in error.message
    assert len(served.requests) == 1, "no engine was asked"
    await ask(model=MODEL, messages=ASK)
    kept = await rows(gateway, "select labels, num_calls, state from recorded_session")
    assert kept == [{"labels": has.replace("none", ""), "num_calls": 2, "state": "open"}]


async def test_what_is_no_set_of_labels_is_refused_by_name_and_nothing_is_kept(
    gateway: Gateway, served: EngineDouble
) -> None:
    many = ",".join(f"n{number}=v" for number in range(9))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"X-Session-Labels": "Env=prod"}, "X-Session-Labels: 'Env' is no name of a label"),
        ({"X-Session-Labels": f"env={'v' * 65}"}, "X-Session-Labels: label env is"),
        ({"X-Session-Labels": many}, "9 labels, and a session has at most 8"),
        ({"metadata": {"upcycle_labels": "env"}}, "metadata.upcycle_labels: 'env' is no label"),
        ({"metadata": {"upcycle_labels": ["env=prod"]}}, "metadata.upcycle_labels is ['env=prod']"),
        (
            {"X-Session-Labels": "env=prod", "metadata": {"upcycle_labels": "env=test"}},
            "two sets of labels: env:prod in X-Session-Labels and env:test in metadata.upcycle_labels",
        ),
        ({"X-Session-ID": "", "X-Session-Labels": "env=prod"}, "names no session: name one"),
    ]
    client = gateway.client()
    for number, (given, said) in enumerate(wrong):
        headers = {"X-Session-ID": fresh(f"bad{number}")} | {
            name: value for name, value in given.items() if name != "metadata"
        }
        body = {"metadata": given["metadata"]} if "metadata" in given else None
        error = await refused(
            lambda: client.chat.completions.create(
                model=MODEL,
                messages=ASK,
                extra_headers=headers,  # noqa: B023
                extra_body=body,  # noqa: B023
            )
        )
        assert (error.status_code, said in error.message) == (400, True), error.message
    assert await rows(gateway, "select * from recorded_session") == []
    assert served.requests == []


@pytest.mark.parametrize("changes", [{"session_idle_s": 600.0}])
async def test_of_first_calls_that_come_together_one_fixes_the_labels(
    gateway: Gateway, served: EngineDouble, changes: dict[str, Any]
) -> None:
    client = gateway.client(KEY, default_headers={"X-Session-ID": fresh("race")})
    asked = [
        client.chat.completions.create(
            model=MODEL, messages=ASK, extra_headers={"X-Session-Labels": f"flow=f{number % 2}"}
        )
        for number in range(6)
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    codes = [getattr(one, "code", None) for one in answers]
    (row,) = await rows(gateway, "select labels, num_calls from recorded_session")
    assert (codes.count("session_of_other_labels"), row["num_calls"]) == (3, 3)
    kept = int(row["labels"].removeprefix("flow:f"))
    assert all((code is None) == (number % 2 == kept) for number, code in enumerate(codes))


async def test_a_session_that_a_gateway_of_the_version_before_opened_has_none(sql_url: str) -> None:
    database = Database(sql_url)
    await database.start()
    await migrate_to(database, "model_gateway", "0005")
    call = rows_of(call_of("old"))
    opened = {
        **{"tenant": "default", "session_id": "old", "key_id": "key", "model": "m", "state": "open"},
        **{"task_digest": call.task_digest, "captured": False, "opened_at": START, "last_call_at": START},
    }
    await database.run(lambda sql: sql.execute(insert(tables.recorded_session).values(**opened)))
    await migrate(database, "model_gateway")
    sessions = SqlSessions(database, SessionBounds())
    found = await sessions.find("old")
    assert found is not None
    assert found.labels == ()
    with pytest.raises(OtherLabels, match="opened with labels none, and this call gives env:prod"):
        found.check(SessionKey("old", "key", labels=("env:prod",)), "m")
    await database.stop()
