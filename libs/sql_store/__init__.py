"""Tables of one service: SQLite in one process, Postgres for several. See README.md."""
