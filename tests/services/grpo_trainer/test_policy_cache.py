"""The weights on the trainer's disk: those of open sessions stay, old ones go."""

from __future__ import annotations

from pathlib import Path

from tests.services.grpo_trainer.batches import policy
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.learners import options, spec, thread_of

from grpo_trainer.adapters.policies import PolicyCache
from grpo_trainer.learner.torch_learner import TorchLearner
from policy_files import load


async def test_the_policy_of_an_open_session_stays_and_of_the_others_the_four_newest(world: World) -> None:
    in_use: list[str] = []
    cache = PolicyCache(world.store, world.folder / "policies", lambda: in_use)
    fetched = []
    for version in range(7):
        await world.publish_base(version=version, seed=version)
        fetched.append(await cache.fetch(await load(world.store, MODEL, version)))
        in_use = [fetched[0].name]
    assert [version for version, path in enumerate(fetched) if path.is_dir()] == [0, 3, 4, 5, 6]


async def test_a_session_names_its_base_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    base = policy(tmp_path / "digest-of-the-base")
    with thread_of(options(1)) as thread:
        learner = TorchLearner(thread)
        await learner.begin(spec(), base)
        assert list(thread.bases.values()) == ["digest-of-the-base"]
        await learner.close()
        assert not thread.bases
