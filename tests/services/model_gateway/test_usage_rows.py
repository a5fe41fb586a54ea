"""Usage rows reach the database, whatever one of them holds."""

from datetime import UTC, datetime

from sqlalchemy import select

from model_gateway.adapters import tables
from model_gateway.adapters.sql_usage import SqlUsageSink
from model_gateway.domain.records import UsageRow
from model_gateway.telemetry import USAGE_DROPPED
from sql_store import MigratedDatabase


def row(number: int, *, model: str = "incident", status: int = 200) -> UsageRow:
    return UsageRow(
        request_id=f"r{number}",
        key_id="k",
        path="/v1/completions",
        model=model,
        version=None,
        digest="",
        status=status,
        error="",
        streamed=False,
        prompt_tokens=0,
        completion_tokens=0,
        started_at=datetime(2026, 11, 22, tzinfo=UTC),
        first_byte_s=None,
        duration_s=0.0,
    )


async def test_a_row_that_the_database_refuses_takes_no_other_row_along(sql_url: str) -> None:
    database = MigratedDatabase(sql_url, "model_gateway")
    await database.start()
    sink, dropped = SqlUsageSink(database), USAGE_DROPPED._value.get()
    for number in range(5):
        sink.add(
            row(number, model="a\0b" if number == 1 else "incident", status=10**30 if number == 3 else 200)
        )
    await sink.flush()
    wanted = select(tables.usage.c.request_id, tables.usage.c.model).order_by(tables.usage.c.request_id)
    found = await database.run(lambda connection: connection.execute(wanted).all())
    await database.stop()
    assert [tuple(one) for one in found] == [
        ("r0", "incident"),
        ("r1", "a\ufffdb"),
        ("r2", "incident"),
        ("r4", "incident"),
    ]
    assert USAGE_DROPPED._value.get() == dropped + 1
