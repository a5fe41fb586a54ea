"""Tables of one service: SQLite in one process, Postgres for several. See README.md for what it
guarantees.
"""

from sql_store.columns import UtcDateTime, columns
from sql_store.database import Database, take_turn
from sql_store.errors import MigrationFailed, UnsupportedDatabase
from sql_store.migrations import MigratedDatabase, migrate
from sql_store.outbox import (
    Fact,
    enqueue,
    enqueue_again,
    enqueue_command,
    enqueue_facts,
    outbox_table,
    publish_again,
)
from sql_store.prepared import PreparedRows
from sql_store.relay import OutboxRelay
from sql_store.sole_holder import SoleHolder, sole_holder_table
from sql_store.tenants import owned

__all__ = [
    "Database",
    "Fact",
    "MigratedDatabase",
    "MigrationFailed",
    "OutboxRelay",
    "PreparedRows",
    "SoleHolder",
    "UnsupportedDatabase",
    "UtcDateTime",
    "columns",
    "enqueue",
    "enqueue_again",
    "enqueue_command",
    "enqueue_facts",
    "migrate",
    "outbox_table",
    "owned",
    "publish_again",
    "sole_holder_table",
    "take_turn",
]
