"""Publishes what a durable state announces. After a crash it is published again, under the same event ids."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from grpo_trainer.domain.errors import Superseded
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.publishing import announce_version, store_version
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps


async def confirm(state: SessionState, deps: RunDeps, retry: RetryUntilAvailable) -> None:
    """Read from the stream whether the planner settled the groups of the last step already.

    The planner publishes group.settled itself for a run that ended, if the trainer misses its deadline.
    Raises Superseded if the stream holds another group.settled for one of our groups, or if it holds the
    final run.stopping and none for one of them.
    """
    await retry.until_available(lambda: _confirm(state, deps))


async def _confirm(state: SessionState, deps: RunDeps) -> None:
    record = state.last_step
    if record is None:
        return
    published = await deps.facts.endings_since(state.spec, state.cursor)
    for one in record.settlements:
        unpublished = "nothing" if published.final_stop else one.outcome.value
        found = published.outcomes.get(one.group_id, unpublished)
        if found != one.outcome.value:
            raise Superseded(
                f"step {record.step} of {state.spec.run_id} trained {one.group_id}, for which the stream "
                f"holds {found}: the planner ended the run without this step"
            )


async def announce(
    state: SessionState, deps: RunDeps, snapshot: Snapshot, retry: RetryUntilAvailable
) -> None:
    """Publish the version of a state, then the facts: groups, step, policy, checkpoint, in this order.

    A first state that has the version of its base announces nothing. Raises Superseded where the planner
    ended the run without the step: then its policy is in the object store, and no event names it.
    """
    record, facts, spec = state.last_step, deps.facts, state.spec
    if record is None and state.version == state.base.version:
        return
    policy = await store_version(state, snapshot, deps.policies, deps.work_dir, retry)
    if record is not None:
        done = record
        await _settle(state, done, deps, retry)
        await retry.until_available(lambda: facts.publish_step(spec, done))
    marker = deps.states.marker_of(state)
    await announce_version(state, policy, marker, state.sources, facts, retry)


async def _settle(state: SessionState, record: StepRecord, deps: RunDeps, retry: RetryUntilAvailable) -> None:
    """Publish group.settled for all groups of a step, and check that the stream took these events.

    The upload of the policy may have taken minutes, so the planner may have ended the run since the step was
    confirmed, and it may do so while the events are published. The stream drops an event whose id it has, so
    only reading it back shows whose came first. Raises Superseded.
    """

    async def attempt() -> None:
        await _confirm(state, deps)
        await asyncio.gather(*(deps.facts.publish_settled(state.spec, one) for one in record.settlements))
        await _confirm(state, deps)

    await retry.until_available(attempt)


async def announce_final(
    state: SessionState, deps: RunDeps, snapshot: Snapshot, retry: RetryUntilAvailable
) -> None:
    """Ask for the last version of a run that ended early to be judged, unless it was asked for already."""
    record = state.last_step
    if record is None or record.saves_checkpoint:
        return
    final = replace(record, saves_checkpoint=True, is_final=True)
    policy = await store_version(state, snapshot, deps.policies, deps.work_dir, retry)
    marker = deps.states.marker_of(state)
    saved = partial(deps.facts.publish_checkpoint, state.spec, final, policy, marker, state.sources)
    await retry.until_available(saved)
