"""A world for each test."""

from pathlib import Path

import pytest
from hypothesis import settings
from tests.services.grpo_trainer.bench import World

# Properties are about values; how long one example takes says something about the machine only.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """An object store with a tiny policy at its head, and an empty stream of facts."""
    made = World(tmp_path)
    await made.publish_base()
    return made
