"""What the world is told of a durable state; may be repeated, word for word, after a crash."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.trajectories import Settlement
from grpo_trainer.ports import PublishedPolicy, Snapshot, Tools
from grpo_trainer.usecases.patience import Patience


async def announce(state: SessionState, tools: Tools, snapshot: Snapshot, patience: Patience) -> None:
    """Publish the version of a state, then the facts: groups, step, policy, checkpoint, in this order.

    A first state that merely repeats a version which is already published announces nothing.
    """
    record, facts, spec = state.last_step, tools.facts, state.spec
    if record is None and state.version == state.base.version:
        return
    policy = await _publish(state, tools, snapshot, patience)

    async def settled(settlement: Settlement) -> None:
        await patience.until_done(lambda: facts.settled(spec, settlement))

    if record is not None:
        done = record
        await asyncio.gather(*(settled(one) for one in done.settlements))
        await patience.until_done(lambda: facts.stepped(spec, done))
    at = state.opened_at if record is None else record.completed_at
    await patience.until_done(lambda: facts.published(spec, policy, step=state.step, at=at))
    if record is not None and record.saves_checkpoint:
        saved = record
        marker = await tools.states.marker_of(state)
        await patience.until_done(lambda: facts.saved(spec, saved, policy, marker))


async def announce_final(state: SessionState, tools: Tools, snapshot: Snapshot, patience: Patience) -> None:
    """Ask for the last version of a run that ended early to be judged, unless it was asked for already."""
    record = state.last_step
    if record is None or record.saves_checkpoint:
        return
    final = replace(record, saves_checkpoint=True, is_final=True)
    policy = await _publish(state, tools, snapshot, patience)
    marker = await tools.states.marker_of(state)
    await patience.until_done(lambda: tools.facts.saved(state.spec, final, policy, marker))


async def _publish(
    state: SessionState, tools: Tools, snapshot: Snapshot, patience: Patience
) -> PublishedPolicy:
    at = state.opened_at if state.last_step is None else state.last_step.completed_at
    with tempfile.TemporaryDirectory(dir=tools.work_dir) as folder:
        directory = Path(folder) / "policy"
        await snapshot.export(directory)
        return await patience.until_done(lambda: tools.policies.publish(state, directory, at=at))
