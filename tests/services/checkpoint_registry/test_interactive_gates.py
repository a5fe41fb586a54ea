"""Checkpoints of interactive training, judged by the gate that the runs of the model asked for."""

from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, checkpoint, judge
from tests.services.checkpoint_registry.planner_double import GATE, PROFILE

from checkpoint_registry.domain.models import CheckpointState


async def test_interactive_training_of_a_model_without_a_gate_is_not_judged(harness: RegistryHarness) -> None:
    await harness.save(1, f"interactive-{MODEL}")
    await harness.drive()
    assert await harness.state(1) is CheckpointState.CANDIDATE
    assert "no run of the model asked for a gate" in await harness.reason(1)
    assert harness.planner.orders == {}
    assert (await harness.models.model(MODEL)).gate_taskset == ""


async def test_interactive_training_of_a_model_with_a_gate_is_judged_by_it(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.4, head_rate=0.4)
    assert (await harness.models.model(MODEL)).gate_taskset == GATE.taskset
    for version in (2, 3):  # the second comes before the first was looked at
        await harness.save(version, f"interactive-{MODEL}")
    await harness.drive()
    assert await harness.reason(2) == "superseded by v3 before it was evaluated"
    assert await harness.state(3) is CheckpointState.EVALUATING
    await harness.finish(3, 0.95, 0.4)
    assert await harness.head() == 3
    found = await harness.models.model(MODEL)
    assert (found.head_revision, found.head_set_revision, found.gate_taskset) == (2, 1, GATE.taskset)
    saved = checkpoint(4, f"interactive-{MODEL}")
    await harness.gate.record(saved, "", keeps_head=True)  # as TrainingClient.step(..., promote=False) asks
    await harness.drive()
    assert await harness.state(4) is CheckpointState.CANDIDATE
    assert "keeps head" in await harness.reason(4)
    job = await harness.gates.job("ckpt-incident-v00000003")
    assert job is not None
    assert (job.gate, job.profile) == (GATE, PROFILE)
