"""Pages of a model's trajectories, newest first, in the order of an index."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Without the tenant: SQLite would take it for every query of a tenant. On a store of millions of
    episodes this takes some seconds of its first start.
    """
    indexed = ["model", "recorded_us", "episode_id"]
    op.create_index("ix_episodes_model_recorded", "episodes", indexed)
