"""Facts about versions that the stream lost before the registry read them are found beside the files."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import nats
import pytest
from nats.js import JetStreamContext
from tests.local_servers import NatsServer
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, stack_on
from tests.services.checkpoint_registry.running_registry import TRAINING_RUN, Stack, policy, upload
from tests.support.waiting import until

from blob_store import MemoryBlobStore, S3BlobStore
from blob_store import ref as blob_ref
from checkpoint_registry import loops
from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from checkpoint_registry.usecases.lost_facts import TakeLostFacts
from event_bus.provision import provision
from event_bus.topology import EVENTS
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.steps import StepRecord
from identities import objects
from identities.entities import checkpoint_id
from policy_files import KeptFacts, manifest_ref
from service_kit.groups import S3Settings
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.events_pb2 import CheckpointEvaluated
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished

AT = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


@pytest.fixture
async def own_stack(s3_settings: S3Settings, tmp_path: Path) -> AsyncIterator[Stack]:
    """A registry on a bus of its own, which a test may break."""
    with NatsServer(tmp_path / "nats") as bus_server:
        await provision(bus_server.url)
        async with stack_on(bus_server.url, s3_settings, tmp_path, {0: 0.3, 1: 0.9}) as made:
            yield made


async def wiped(url: str) -> None:
    """EVENTS is made anew."""
    client = await nats.connect(url)
    await JetStreamContext(client).delete_stream(EVENTS)
    await client.close()
    await provision(url)


@pytest.mark.timeout(180)
async def test_the_gate_judges_a_checkpoint_whose_facts_were_lost_before_the_registry_began(
    own_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of a run was files while the registry was down, the stream was made anew, and the run is
    closed: no trainer tells it again."""
    monkeypatch.setattr(loops, "LOST_FACTS_S", 0.5)
    stack, model = own_stack, "lost"
    async with stack.registry() as stub:
        await upload(stub, model, policy())
    store = S3BlobStore(stack.settings.s3)
    await store.start()
    manifest = manifest_ref(await stack.store(model, 1))
    facts = BusFacts(stack.bus, KeptFacts(store), now=lambda: AT)
    spec = TrainingSpec(run_id=TRAINING_RUN, model=model, group_size=4)
    policy_1 = PublishedPolicy(1, "1" * 64, manifest)
    record = StepRecord(1, 1, ("t1",), {"loss": 0.5}, AT, saves_checkpoint=True, parent_checkpoint_id="")
    await facts.publish_policy(spec, policy_1, step=1, at=AT)
    await facts.publish_checkpoint(spec, record, policy_1, policy_1.manifest, {"eval-1": 2})
    await wiped(stack.settings.bus.url)
    async with stack.registry() as stub:
        judged = await stack.fact(CheckpointEvaluated, model)
        assert judged.checkpoint_id == checkpoint_id(model, 1)

        async def is_head() -> bool:
            found = await stub.GetModel(pb.GetModelRequest(model=model))
            return found.model.head_version == 1

        await until(is_head, "the candidate to be head")
        head = (await stub.GetModel(pb.GetModelRequest(model=model))).head
        assert (dict(head.sources), dict(head.metrics), head.run_id) == (
            {"eval-1": 2},
            {"loss": 0.5},
            TRAINING_RUN,
        )
    await store.stop()


class TrainerFiles:
    """A registry that looks at what a trainer keeps."""

    def __init__(self, harness: RegistryHarness) -> None:
        self.store = MemoryBlobStore()
        self.woken: list[str] = []
        self.harness = harness
        files = KeptAnnouncements(self.store)
        self.take = TakeLostFacts(files, harness.versions, harness.gate, self.woken.extend)

    async def version(self, version: int, *, model: str = MODEL, is_announced: bool = True) -> None:
        """Files of a version; of a void step's, nothing is files."""
        manifest = await self.store.put(objects.policy_manifest(model, version), b"{}")
        if is_announced:
            fact = PolicyPublished(model=model, version=version, digest=f"{version:064x}", step=version)
            fact.manifest.CopyFrom(blob_ref.to_wire(manifest))
            await KeptFacts(self.store).keep(fact)

    async def saved(self, version: int, *, keeps_head: bool = False) -> None:
        """It asks to be judged."""
        identity = checkpoint_id(MODEL, version)
        fact = CheckpointSaved(checkpoint_id=identity, model=MODEL, version=version, keeps_head=keeps_head)
        fact.digest = f"{version:064x}"
        fact.manifest.key, fact.manifest.sha256 = objects.policy_manifest(MODEL, version), "a" * 64
        await KeptFacts(self.store).keep(fact)

    async def latest(self) -> int:
        """As engines are files."""
        return (await self.harness.models.model(MODEL)).latest.version


async def test_what_is_missing_at_two_looks_is_recorded_and_a_void_step_never_is(
    harness: RegistryHarness,
) -> None:
    files = TrainerFiles(harness)
    await files.version(1)
    await files.version(2, is_announced=False)
    await files.take.look()
    assert await files.latest() == 0, "its fact may be on its way"
    await files.take.look()
    assert await files.latest() == 1
    await files.take.look()
    assert await files.latest() == 1


async def test_a_lost_candidate_wakes_the_gate_and_one_that_keeps_head_is_not_judged(
    harness: RegistryHarness,
) -> None:
    files = TrainerFiles(harness)
    for version, keeps_head in ((1, False), (2, True)):
        await files.version(version)
        await files.saved(version, keeps_head=keeps_head)
    for _ in range(2):
        await files.take.look()
    assert set(files.woken) == {MODEL}
    found = await harness.models.checkpoint(checkpoint_id(MODEL, 2))
    assert "no gate judges it" in found.reason
    assert not (await harness.models.checkpoint(checkpoint_id(MODEL, 1))).reason


async def test_a_version_that_retention_removed_does_not_come_back(harness: RegistryHarness) -> None:
    files = TrainerFiles(harness)
    await files.version(1)
    await harness.versions.mark_removed(MODEL, 1, AT)
    for _ in range(3):
        await files.take.look()
    assert await files.latest() == 0


async def test_a_model_that_is_not_registered_stops_no_other(harness: RegistryHarness) -> None:
    files = TrainerFiles(harness)
    await files.version(1, model="a-stranger")
    await files.version(1)
    for _ in range(2):
        await files.take.look()
    assert await files.latest() == 1
