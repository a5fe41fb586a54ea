"""Stores and announces the version that a step produced, for runs and for interactive sessions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from blob_store import BlobRef
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import RegistryPolicies
from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.states import SessionState
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.retrying import RetryUntilAvailable


async def store_version(
    state: SessionState,
    snapshot: Snapshot,
    policies: RegistryPolicies,
    work_dir: Path,
    retry: RetryUntilAvailable,
) -> PublishedPolicy:
    """Store the weights of a state's version; no event names them yet.

    Raises LineageTaken if another trainer has stored other weights under this version.
    """
    with tempfile.TemporaryDirectory(dir=work_dir) as folder:
        directory = Path(folder) / "policy"
        await retry.until_available(lambda: snapshot.export(directory))
        return await retry.until_available(lambda: policies.upload(state, directory))


async def announce_version(
    session: SessionState,
    policy: PublishedPolicy,
    marker: BlobRef,
    sources: Mapping[str, int],
    facts: BusFacts,
    retry: RetryUntilAvailable,
    *,
    keeps_head: bool = False,
) -> None:
    """Publish policy.published, then checkpoint.saved where the step saves one. Safe to repeat.

    marker: claim check of the durable state. sources: groups in the weights, by the run that they are of.
    keeps_head: no gate is to judge the checkpoint.
    """
    spec, record, at = session.spec, session.last_step, session.completed_at
    await retry.until_available(
        lambda: facts.publish_policy(spec, policy, step=session.step, at=at, state=marker)
    )
    if record is not None and record.saves_checkpoint:
        saved = partial(
            facts.publish_checkpoint, spec, record, policy, marker, sources, keeps_head=keeps_head
        )
        await retry.until_available(saved)
