"""Stores the version that a step produced, for runs and for interactive sessions."""

from __future__ import annotations

import tempfile
from pathlib import Path

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
        await snapshot.export(directory)
        return await retry.until_available(lambda: policies.publish(state, directory))
