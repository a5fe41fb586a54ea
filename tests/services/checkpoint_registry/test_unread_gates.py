"""A training step asks to move head while the registry does not know yet whether the model has a gate."""

from typing import Any

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness

from checkpoint_registry.domain.errors import GateDecides
from checkpoint_registry.usecases.models import HeadOrder, ManageModels
from identities.entities import checkpoint_id, interactive_run_id
from upcycle.errors import Unavailable

NO_UPLOADS: Any = None


def manage(harness: RegistryHarness) -> ManageModels:
    return ManageModels(harness.models, NO_UPLOADS, lambda _: None, now=harness.clock)


def to_version(version: int) -> HeadOrder:
    return HeadOrder(MODEL, checkpoint_id(MODEL, version), "interactive training", "a step", "service")


async def test_a_step_waits_until_it_is_known_whether_a_run_asked_for_a_gate(
    harness: RegistryHarness,
) -> None:
    """The first checkpoint of a run with a gate is saved; the planner was not asked about it yet."""
    await harness.save(1)
    await harness.save(2, interactive_run_id(MODEL))
    with pytest.raises(Unavailable, match="v1"):
        await manage(harness).set_head(to_version(2), unless_gated=True)
    await harness.drive()
    with pytest.raises(GateDecides):
        await manage(harness).set_head(to_version(2), unless_gated=True)
    assert await harness.head() == 0


async def test_a_person_waits_for_no_gate_and_a_step_for_no_other_step(harness: RegistryHarness) -> None:
    await harness.save(1, interactive_run_id(MODEL))
    await manage(harness).set_head(to_version(1), unless_gated=True)
    assert await harness.head() == 1
    await harness.save(2)
    await manage(harness).set_head(to_version(2))
    assert await harness.head() == 2
