"""Evaluations that are played in the caller's own process: how they are named, and what they may not do."""

import uuid
from typing import Final

LOCAL_RUN: Final = "here-"
"""How the id of an evaluation in one process begins; the planner knows none of them."""


def new_run_id() -> str:
    """Of an evaluation in this process."""
    return f"{LOCAL_RUN}{uuid.uuid4().hex[:12]}"


def is_local_run(run_id: str) -> bool:
    """Whether an evaluation in one process has this id."""
    return run_id.startswith(LOCAL_RUN)


def why_no_source(run_id: str) -> str:
    """Why a training run cannot take its first batches from it."""
    return (
        f"{run_id!r:.80} was played and graded in a client's own process (client_graded): it trains by "
        "interactive calls alone, never by a run"
    )
