"""Publishes what a durable state announces. After a crash it is published again, under the same event ids."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.states import SessionState
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.publishing import announce_version, store_version
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps


async def confirm(state: SessionState, deps: RunDeps, retry: RetryUntilAvailable) -> None:
    """Read whether the last step is void already, which spares its upload.

    The planner settles the groups of a run that ended itself, if the trainer misses its deadline. Raises
    Superseded if another group.settled was decided for one of our groups, or another step.completed for the
    step.
    """
    record = state.last_step
    if record is not None:
        await retry.until_available(lambda: deps.facts.confirm_step(state.spec, record))


async def announce(
    state: SessionState, deps: RunDeps, snapshot: Snapshot, retry: RetryUntilAvailable
) -> None:
    """Store the version of a state, then publish: groups and step as one, policy, checkpoint, in this order.

    The upload may take minutes, and the planner may end the run meanwhile. What is published first decides:
    either all groups are trained and the step is completed, or nothing of the step is heard of. A first state
    that has the version of its base announces nothing. Raises Superseded where the step is void: then its
    policy is in the object store, and no event names it.
    """
    record, facts, spec = state.last_step, deps.facts, state.spec
    if record is None and state.version == state.base.version:
        return
    policy = await store_version(state, snapshot, deps.policies, deps.work_dir, retry)
    if record is not None:
        done = record
        await retry.until_available(lambda: facts.publish_step(spec, done))
    marker = deps.states.marker_of(state)
    await announce_version(state, policy, marker, state.sources, facts, retry)


async def announce_final(
    state: SessionState, deps: RunDeps, snapshot: Snapshot, retry: RetryUntilAvailable
) -> None:
    """Ask for the last version of a run that ended early to be judged, unless it was asked for already."""
    if _may_be_final(state):
        policy = await store_version(state, snapshot, deps.policies, deps.work_dir, retry)
        await _publish_final(state, policy, deps, retry)


async def announce_final_stored(state: SessionState, deps: RunDeps, retry: RetryUntilAvailable) -> None:
    """As `announce_final`, of a version that was stored and published before, and that no learner holds."""
    if _may_be_final(state):
        spec, version = state.spec, state.version
        policy = await retry.until_available(lambda: deps.policies.stored(spec.model, version))
        await _publish_final(state, policy, deps, retry)


def _may_be_final(state: SessionState) -> bool:
    return state.last_step is not None and not state.last_step.saves_checkpoint


async def _publish_final(
    state: SessionState, policy: PublishedPolicy, deps: RunDeps, retry: RetryUntilAvailable
) -> None:
    record = state.last_step
    if record is None:
        return
    final = replace(record, saves_checkpoint=True, is_final=True)
    marker = deps.states.marker_of(state)
    saved = partial(deps.facts.publish_checkpoint, state.spec, final, policy, marker, state.sources)
    await retry.until_available(saved)
