"""How many episodes and groups of a run are in which state, kept by the database: its triggers see each row
that changes, also what a planner of an earlier version writes. Who looks at a run reads no episode.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_KEY = "run_id, kind, value"
_OF_TABLE = {
    "episode": ("'episode'", "{row}.state", "OLD.state <> NEW.state"),
    "task_group": (
        "CASE WHEN {row}.is_open THEN 'open_group' ELSE 'group' END",
        "CASE WHEN {row}.is_open THEN '' ELSE {row}.outcome END",
        "OLD.is_open <> NEW.is_open OR OLD.outcome <> NEW.outcome",
    ),
}
"""By table: kind and value of a row, and when they change."""


def upgrade() -> None:
    """Add a table, count what is there, and keep it counted. The index that served to count outcomes goes."""
    op.create_table(
        "run_count",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("num", sa.BigInteger, nullable=False),
    )
    op.drop_index("task_group_by_outcome", "task_group")
    for table, (kind, value, is_changed) in _OF_TABLE.items():
        less = _less(kind.format(row="OLD"), value.format(row="OLD"))
        more = _more(kind.format(row="NEW"), value.format(row="NEW"))
        _after("INSERT", table, more)
        _after("UPDATE", table, f"{less} {more}", f"WHEN ({is_changed})")
        _after("DELETE", table, less)
        # No row is written meanwhile: SQLite has one writer, and on Postgres a new trigger locks its table.
        counted = f"run_id, {kind.format(row='counted')}, {value.format(row='counted')}, count(*)"
        op.execute(
            f"INSERT INTO run_count ({_KEY}, num) SELECT {counted} FROM {table} AS counted GROUP BY 1, 2, 3"  # noqa: S608
        )


def _less(kind: str, value: str) -> str:
    of_row = f"run_id = OLD.run_id AND kind = {kind} AND value = {value}"
    return f"UPDATE run_count SET num = num - 1 WHERE {of_row};"  # noqa: S608


def _more(kind: str, value: str) -> str:
    return (
        f"INSERT INTO run_count ({_KEY}, num) VALUES (NEW.run_id, {kind}, {value}, 1) "  # noqa: S608
        f"ON CONFLICT ({_KEY}) DO UPDATE SET num = run_count.num + 1;"
    )


def _after(event: str, table: str, what: str, when: str = "") -> None:
    name = f"{table}_{event.lower()}_counted"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} {when} BEGIN {what} END")
        return
    body = f"$$ BEGIN {what} RETURN NULL; END $$"
    op.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS {body}")
    op.execute(
        f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {when} EXECUTE FUNCTION {name}()"
    )
