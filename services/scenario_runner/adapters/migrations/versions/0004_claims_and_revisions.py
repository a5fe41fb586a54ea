"""Which side each task is on; revisions of tasksets, and which of them a run and a group are of."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# What `upcycle.eval(task)` registered as held out, when every taskset had to be either that or train.
_AD_HOC = "adhoc-"


def upgrade() -> None:
    """To this revision. Ad-hoc tasksets claim no task and become unassigned: they neither train nor judge."""
    _claims()
    _move_ad_hoc("held_out", "unassigned")
    # Named as it is used from now on. Both databases rename it in the foreign keys of other tables as well.
    op.execute("ALTER TABLE taskset RENAME COLUMN name TO storage_key")
    op.add_column("taskset", sa.Column("name", sa.String(200), nullable=False, server_default=""))
    op.add_column("taskset", _revision("revision"))
    op.execute("UPDATE taskset SET name = storage_key")
    op.create_index("taskset_by_name", "taskset", ["name", "revision"], unique=True)
    op.add_column("run", _revision("taskset_revision"))
    op.add_column("task_group", sa.Column("taskset", sa.String(200), nullable=False, server_default=""))
    op.execute(
        "UPDATE task_group SET taskset = (SELECT taskset FROM run WHERE run.run_id = task_group.run_id)"
    )


def downgrade() -> None:
    """Later revisions become tasksets called `name@n`, and unassigned ad-hoc tasksets are held out again.

    All claims are dropped. An upgrade after that makes those of registered tasksets again, and not those of
    interactive gradients (`gradient of …`): such a task may then be registered as held out.
    """
    _move_ad_hoc("unassigned", "held_out")
    op.drop_column("task_group", "taskset")
    op.drop_column("run", "taskset_revision")
    op.drop_index("taskset_by_name", "taskset")
    op.drop_column("taskset", "revision")
    op.drop_column("taskset", "name")
    op.execute("ALTER TABLE taskset RENAME COLUMN storage_key TO name")
    op.drop_table("task_claim")


def _move_ad_hoc(of: str, split: str) -> None:
    moved = sa.text(
        "UPDATE taskset SET split = :split WHERE split = :of AND substr(name, 1, :size) = :ad_hoc"
    )
    op.get_bind().execute(moved, {"split": split, "of": of, "size": len(_AD_HOC), "ad_hoc": _AD_HOC})


def _revision(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="1")


def _claims() -> None:
    op.create_table(
        "task_claim",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("split", sa.String(16), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
    )
    # A task that was registered on both sides is held out: it must not train from now on.
    for split in ("held_out", "train"):
        filled = sa.text(
            "INSERT INTO task_claim (digest, split, claimed_by, claimed_at) "
            "SELECT task.digest, :split, 'taskset ' || MIN(taskset.name), MIN(taskset.registered_at) "
            "FROM task JOIN taskset ON taskset.name = task.taskset "
            "WHERE taskset.split = :of AND substr(taskset.name, 1, :size) <> :ad_hoc "
            "AND task.digest NOT IN (SELECT digest FROM task_claim) GROUP BY task.digest"
        )
        op.get_bind().execute(filled, {"split": split, "of": split, "size": len(_AD_HOC), "ad_hoc": _AD_HOC})
