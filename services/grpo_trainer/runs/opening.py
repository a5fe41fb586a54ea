"""How a session begins: from the promoted version, or from its newest durable state."""

from __future__ import annotations

import tempfile
from pathlib import Path

from grpo_trainer.domain.errors import OldState
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.trajectories import Submission
from grpo_trainer.learner.protocol import Learner
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from upcycle.errors import Unavailable


async def first_state(
    submission: Submission, deps: RunDeps, learner: Learner, retry: RetryUntilAvailable
) -> SessionState:
    """Head becomes the first state, durable before the first fact is handled.

    Where newer versions than head were uploaded, head's weights get a new number: versions are never reused.
    Raises InvalidTrainingSpec, LineageTaken.
    """
    spec, policies = submission.spec, deps.policies
    base = await retry.until_available(lambda: policies.head(spec.model))
    newest = await retry.until_available(lambda: policies.newest_uploaded(spec.model))
    taskset = spec.held_out_taskset
    held_out = await retry.until_available(lambda: deps.held_out.digests(taskset)) if taskset else ()
    ancestors = await retry.until_available(lambda: policies.ancestors(base, spec.max_staleness))
    directory = await retry.until_available(lambda: policies.fetch(base))
    await learner.begin(spec, directory)
    first = base.version if newest <= base.version else newest + 1
    state = SessionState(
        spec=spec,
        base=base,
        first_version=first,
        version=first,
        step=0,
        cursor=submission.sequence,
        seen=submission.sequence,
        settled=SettledGroups(spec.run_id).to_json(),
        settled_counts={},
        held_out_tasks=held_out,
        opened_at=deps.now(),
        parent_checkpoint_id=base.checkpoint_id,
        trace_headers=submission.trace_headers,
        canary=(await learner.snapshot()).canary,
        ancestors=ancestors,
    )
    return await retry.until_available(lambda: deps.states.commit(state, None))


async def load_state(
    state: SessionState, deps: RunDeps, learner: Learner, retry: RetryUntilAvailable
) -> None:
    """Put the learner where it was when `state` became durable. A state of an earlier release is waited for
    until an operator has converted it: the run does not fail, and /readyz says which command does it. Raises
    BrokenArtifact where it is not the state that was announced."""
    spec = state.spec
    recorded = await retry.until_available(lambda: deps.policies.recorded_state(spec.model, state.version))
    await retry.until_available(lambda: deps.states.prove(state, recorded))
    if not state.tensors:
        await learner.begin(state.spec, await retry.until_available(lambda: deps.policies.fetch(state.base)))
        return
    with tempfile.TemporaryDirectory(dir=deps.work_dir) as folder:
        path = Path(folder) / "state"
        path.mkdir()
        await retry.until_available(lambda: _fetch(state, path, deps))
        directory = await retry.until_available(lambda: deps.policies.fetch(state.base))
        await learner.resume(state.spec, directory, path)


async def _fetch(state: SessionState, path: Path, deps: RunDeps) -> None:
    try:
        await deps.states.tensors(state, path)
    except OldState as error:
        raise Unavailable(str(error)) from error
