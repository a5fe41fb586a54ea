"""What the world is told of a durable state; may be repeated, word for word, after a crash."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from grpo_trainer.domain.errors import Overruled
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.patience import Patience
from grpo_trainer.ports import PublishedPolicy
from grpo_trainer.runs.deps import Tools


async def confirm(state: SessionState, tools: Tools, patience: Patience) -> None:
    """Before a step is announced: ask the stream whether the planner settled its groups already.

    The planner settles the groups of a run that ended, where the trainer did not do so in time. Raises
    Overruled where a group of the step was settled otherwise first, or the planner has stopped waiting.
    """
    await patience.until_done(lambda: _confirm(state, tools))


async def _confirm(state: SessionState, tools: Tools) -> None:
    record = state.last_step
    if record is None:
        return
    said = await tools.facts.said_since(state.spec, state.cursor)
    for one in record.settlements:
        heard = said.outcomes.get(one.group_id, "nothing" if said.last_word else one.outcome.value)
        if heard != one.outcome.value:
            raise Overruled(
                f"step {record.step} of {state.spec.run_id} trained {one.group_id}, of which {heard} was "
                "heard in time: the planner ended the run without it"
            )


async def announce(state: SessionState, tools: Tools, snapshot: Snapshot, patience: Patience) -> None:
    """Publish the version of a state, then the facts: groups, step, policy, checkpoint, in this order.

    A first state that merely repeats a version which is already published announces nothing. Raises Overruled
    where the planner ended the run without the step: then only its policy is out, which no fact names.
    """
    record, facts, spec = state.last_step, tools.facts, state.spec
    if record is None and state.version == state.base.version:
        return
    policy = await _publish(state, tools, snapshot, patience)
    if record is not None:
        done = record
        await _settle(state, done, tools, patience)
        await patience.until_done(lambda: facts.stepped(spec, done))
    at = state.opened_at if record is None else record.completed_at
    await patience.until_done(lambda: facts.published(spec, policy, step=state.step, at=at))
    if record is not None and record.saves_checkpoint:
        saved = record
        marker = await tools.states.marker_of(state)
        await patience.until_done(lambda: facts.saved(spec, saved, policy, marker, state.sources))


async def _settle(state: SessionState, record: StepRecord, tools: Tools, patience: Patience) -> None:
    """All groups of a step, and proof that the stream took these facts and not others before them.

    The upload of the policy may have taken minutes, so the planner may have ended the run since the step was
    confirmed; it may also do so while the facts are published. The stream drops a fact whose id it has, so
    only reading it tells whose came first. Raises Overruled.
    """

    async def attempt() -> None:
        await _confirm(state, tools)
        await asyncio.gather(*(tools.facts.settled(state.spec, one) for one in record.settlements))
        await _confirm(state, tools)

    await patience.until_done(attempt)


async def announce_final(state: SessionState, tools: Tools, snapshot: Snapshot, patience: Patience) -> None:
    """Ask for the last version of a run that ended early to be judged, unless it was asked for already."""
    record = state.last_step
    if record is None or record.saves_checkpoint:
        return
    final = replace(record, saves_checkpoint=True, is_final=True)
    policy = await _publish(state, tools, snapshot, patience)
    marker = await tools.states.marker_of(state)
    saved = partial(tools.facts.saved, state.spec, final, policy, marker, state.sources)
    await patience.until_done(saved)


async def _publish(
    state: SessionState, tools: Tools, snapshot: Snapshot, patience: Patience
) -> PublishedPolicy:
    at = state.opened_at if state.last_step is None else state.last_step.completed_at
    with tempfile.TemporaryDirectory(dir=tools.work_dir) as folder:
        directory = Path(folder) / "policy"
        await snapshot.export(directory)
        return await patience.until_done(lambda: tools.policies.publish(state, directory, at=at))
