"""What every history begins with: a model with its first weights, and three tasksets."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from tests.simulation import services, stubs

from blob_store import MemoryBlobStore
from episodes import Split
from grpo_trainer.domain.states import BasePolicy
from identities.entities import checkpoint_id
from policy_files import PolicyFacts, manifest_ref, upload
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from upcycle.run_config import PolicyChoice


def base_policies(folder: Path) -> tuple[dict[str, bytes], dict[str, BasePolicy]]:
    """The versions that every history begins with, one of each model, uploaded as the registry does it."""
    blobs, found = MemoryBlobStore(), {}
    for model in services.MODELS:
        directory = folder / f"base-{model}"
        stubs.write_policy(directory, f"base {model}")
        facts = PolicyFacts(model=model, version=0, created_at=datetime(2026, 1, 1, tzinfo=UTC))
        manifest = asyncio.run(upload(blobs, directory, facts))
        found[model] = BasePolicy(0, checkpoint_id(model, 0), manifest_ref(manifest))
    return blobs.objects, found


def tasksets(num_tasks: int) -> list[RegisteredTaskset]:
    """What a run trains on, what one with a mix plays beside it, and what the gate judges by."""
    found = []
    wanted = (
        ("ts", "e", Split.TRAIN, 0, num_tasks),
        (services.OTHER_TASKS, "f", Split.TRAIN, 50, 3),
        (services.HELD_OUT, "e", Split.HELD_OUT, 100, services.NUM_HELD_OUT),
    )
    for name, environment, split, first, count in wanted:
        source = PythonEnvironment(environment, f"/{environment}.py")
        numbers = range(first, first + count)
        tasks = tuple(RunnableTask(f"t{one}", "s", "{}", "default", f"{one:064d}") for one in numbers)
        found.append(RegisteredTaskset(name, f"{first:064d}", split, source, count, tasks))
    return found


class AnyPolicy:
    """A registry that knows every policy."""

    async def check_policy(self, policy: PolicyChoice) -> None:
        """It exists."""

    async def head_version(self, model: str) -> int:
        return 0
