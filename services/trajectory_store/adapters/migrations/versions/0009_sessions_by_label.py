"""Recorded sessions of a label, newest first: without it all trajectories of a model are looked at."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two small indexes: most rows have no labels."""
    labelled = sa.text("labels <> ''")
    for name, indexed in (
        ("ix_episodes_labelled", ["recorded_us", "episode_id"]),
        ("ix_episodes_model_labelled", ["model", "recorded_us", "episode_id"]),
    ):
        op.create_index(name, "episodes", indexed, sqlite_where=labelled, postgresql_where=labelled)
