"""Candidates and heads are played side by side, and judged at a level of their run.

A job that a registry of the version before began is judged anew, with pairs: its columns are empty.
"""

import sqlalchemy as sa
from alembic import op

from sql_store import columns

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A registry of the version before writes jobs without the new columns."""
    op.add_column("gate_job", sa.Column("gate_options", sa.JSON))
    op.add_column("gate_job", sa.Column("level", sa.Float))
    op.add_column(
        "gate_job", sa.Column("head_checkpoint_id", sa.String(128), nullable=False, server_default="")
    )
    op.add_column("gate_job", sa.Column("head_revision", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "pair_run",
        _tenant(),
        sa.Column("request_id", sa.String(384), primary_key=True),
        *_texts("checkpoint_id head_checkpoint_id profile_key", 128),
        *_texts("model run_id taskset_digest source_digest", 64),
        *_texts("taskset", 256),
        *_texts("state", 16),
        *_numbers("head_revision number attempts"),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("families", sa.JSON, nullable=False),
        sa.Column("outcomes", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("pair_run_of_judgement", "pair_run", ["tenant", "checkpoint_id", "head_revision"])
    op.create_index("pair_run_of_run", "pair_run", ["tenant", "run_id"])
    op.create_index("pair_run_of_heads", "pair_run", ["tenant", "model", "taskset_digest", "updated_at"])
    op.create_table(
        "gate_test",
        _tenant(),
        sa.Column("checkpoint_id", sa.String(128), primary_key=True),
        sa.Column("head_revision", sa.BigInteger, primary_key=True),
        *_texts("run_id", 64),
        *columns("level", sa.Float),
        sa.Column("promoted", sa.Integer, nullable=False),
        sa.Column("tested_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("gate_test_of_run", "gate_test", ["tenant", "run_id"])


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant", sa.String(64), primary_key=True, server_default="default")


def _texts(names: str, length: int) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String(length), nullable=False) for name in names.split()]


def _numbers(names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names.split()]
