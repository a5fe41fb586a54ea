"""Who writes to the object store, and has no key of a writer: engine, registry, sampler and trainer use
nothing that was altered, swapped, moved or made up there."""

import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from pydantic import SecretStr
from tests.attacks.conftest import Attacked
from tests.libs.signed_objects.writers import Keys, signature_key
from tests.platform_recipes import MODEL as SERVED
from tests.services.grpo_trainer.fakes import START
from tests.services.grpo_trainer.learners import spec as run_spec
from tests.services.policy_engine.policies import make_policy

from blob_store import BlobRef, MemoryBlobStore, S3BlobStore
from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from checkpoint_registry.adapters.policy_store import PolicyUploads
from episodes import EpisodeBroken
from grpo_trainer.adapters.step_folders import StepStates
from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.domain.failures import BrokenRun
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.interactive.state import InteractiveState
from grpo_trainer.interactive.states_store import InteractiveStates
from grpo_trainer.runs.stores import BlobStates
from identities import objects
from identities.entities import checkpoint_id
from local_stack.credentials import load_or_make
from policy_engine.adapters.policy_store import PolicyDownloads
from policy_engine.domain import EngineTarget, VersionRefused
from policy_files import (
    Announcement,
    FalseAnnouncement,
    PolicyFacts,
    load,
    manifest_bytes,
    manifest_ref,
    policy_digest,
    upload,
)
from rollout_sampler.adapters.policies import PolicyFiles
from service_kit.groups import S3Settings
from signed_objects import SigningKey, TrustedKeys, UnprovenBlob
from signed_objects.keys import OPERATOR, key_file, trusted_file
from signed_objects.migration import sign_all, unproven
from upcycle.api.registry.v1.service_pb2 import ForkModelRequest
from upcycle.api.training.v1.training_pb2 import PolicyManifest
from upcycle.platform import Platform

MODEL, RUN = "m", "run-0000000000ab"


class Bucket:
    """A platform's bucket, and what its attacker does with it. raw: as who holds the store's key has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = Keys(folder / "signing")
        self.raw = MemoryBlobStore()
        self.trainer = self.keys.store(self.raw, "grpo_trainer")
        self.registry = self.keys.store(self.raw, "checkpoint_registry")
        self.reader = self.keys.store(self.raw)

    async def publish(self, version: int) -> PolicyManifest:
        directory = make_policy(self.folder / f"v{version}", seed=version)
        return await upload(self.trainer, directory, PolicyFacts(MODEL, version, START))

    async def used_by(self, manifest: PolicyManifest) -> list[str]:
        """Which processes use a version that is announced as this manifest."""
        ref = manifest_ref(manifest)
        said = Announcement("policy.published", manifest.model, manifest.version, manifest.digest, ref)
        target = EngineTarget(manifest.version, manifest.digest, ref)
        uploads = PolicyUploads(self.registry, staging_dir=self.folder, max_import_bytes=1, now=lambda: START)
        tries: dict[str, Callable[[], Awaitable[object]]] = {
            "engine": lambda: PolicyDownloads(self.reader, self.folder / "engine").fetch(target),
            "registry": lambda: KeptAnnouncements(self.registry).prove(said),
            "fork": lambda: uploads.fork(ref, f"fork-of-{manifest.digest[:8]}"),
            "sampler": lambda: PolicyFiles(self.reader, self.folder / "sampler").weights_digest(
                manifest.model, manifest.version
            ),
            "trainer": lambda: load(self.trainer, manifest.model, manifest.version),
        }
        return [who for who, use in tries.items() if await self._uses(use, manifest)]

    async def _uses(self, use: Callable[[], Awaitable[object]], manifest: PolicyManifest) -> bool:
        """False where it is refused, for want of a proof and nothing else."""
        try:
            await use()
        except (VersionRefused, FalseAnnouncement, EpisodeBroken, UnprovenBlob) as refused:
            key = objects.policy_manifest(manifest.model, manifest.version)
            if f"{key} is not used: " not in str(refused):
                raise
            return False
        return True


EVERYBODY = ["engine", "registry", "fork", "sampler", "trainer"]


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


async def test_a_version_as_the_trainer_wrote_it_is_used(bucket: Bucket) -> None:
    assert await bucket.used_by(await bucket.publish(1)) == EVERYBODY


async def test_a_manifest_that_was_altered_is_refused(bucket: Bucket) -> None:
    """Also by those who learn its new digest from a fact that the attacker forged."""
    manifest = await bucket.publish(1)
    manifest.canary.clear()
    manifest.dtype = "bfloat16"
    await bucket.raw.put(manifest_ref(manifest).key, manifest_bytes(manifest))
    assert await bucket.used_by(manifest) == []


async def test_weights_that_were_swapped_with_a_digest_that_fits_are_refused(bucket: Bucket) -> None:
    manifest, evil = await bucket.publish(1), make_policy(bucket.folder / "evil", seed=666)
    for file in manifest.files:
        data = (evil / file.name).read_bytes()
        ref = await bucket.raw.put(f"{objects.policy_version(MODEL, 1)}/0123456789abcdef/{file.name}", data)
        file.blob.key, file.blob.sha256, file.blob.size_bytes = ref.key, ref.sha256, ref.size_bytes
    manifest.digest = policy_digest({file.name: file.blob.sha256 for file in manifest.files})
    await bucket.raw.put(manifest_ref(manifest).key, manifest_bytes(manifest))
    assert await bucket.used_by(manifest) == []


@pytest.mark.parametrize(("model", "version"), [(MODEL, 2), ("other", 1)])
async def test_a_signed_manifest_under_another_name_is_refused(
    model: str, version: int, bucket: Bucket
) -> None:
    """An old version in the place of a new one, a weak model in the place of a strong one."""
    manifest = await bucket.publish(1)
    was = manifest_ref(manifest)
    signature = bucket.raw.objects[signature_key(was.key, manifest_bytes(manifest))]
    manifest.model, manifest.version = model, version
    key = objects.policy_manifest(model, version)
    for data in (manifest_bytes(manifest), bucket.raw.objects[was.key]):
        await bucket.raw.put(key, data)
        await bucket.raw.put(signature_key(key, data), signature)
        with pytest.raises(UnprovenBlob, match="altered or moved"):
            await bucket.reader.read(key)
    await bucket.raw.put(key, manifest_bytes(manifest))
    assert await bucket.used_by(manifest) == []


async def test_an_attackers_own_signature_proves_nothing(bucket: Bucket) -> None:
    manifest = await bucket.publish(1)
    manifest.dtype = "bfloat16"
    thief = Keys(bucket.folder / "thief").store(bucket.raw, "grpo_trainer")
    await thief.put(manifest_ref(manifest).key, manifest_bytes(manifest))
    assert await bucket.used_by(manifest) == []


async def test_a_fact_that_was_made_up_beside_a_version_is_not_taken(bucket: Bucket) -> None:
    await bucket.publish(1)
    key = objects.policy_fact(MODEL, 1, objects.SAVED)
    await bucket.raw.put(key, json.dumps({"model": MODEL, "version": 1}).encode())
    with pytest.raises(UnprovenBlob):
        await bucket.registry.read(key)


def at_step(step: int, run_id: str = RUN) -> SessionState:
    spec = dataclasses.replace(run_spec(), run_id=run_id, model=MODEL)
    base = BasePolicy(0, checkpoint_id(MODEL, 0), BlobRef("base", "0" * 64, 1))
    return SessionState(spec, base, 0, step, step, START, base.checkpoint_id, cursor=10 * step)


def interactive(step: int) -> InteractiveState:
    ref = BlobRef(objects.policy_manifest(MODEL, step), "0" * 64, 1)
    return InteractiveState(at_step(step), ref, "0" * 64, f"request-{step}", 1, False)


async def committed(bucket: Bucket, *steps: int, run_id: str = RUN) -> list[str]:
    """Keys of the markers of a run's steps."""
    states = BlobStates(bucket.trainer)
    return [states.marker_of(await states.commit(at_step(step, run_id), None)).key for step in steps]


async def refusal(bucket: Bucket, run_id: str = RUN) -> str:
    """Why a trainer that starts now does not go on with the run."""
    found = await BlobStates(bucket.trainer).find_run(MODEL, run_id)
    assert isinstance(found, BrokenRun)
    states, line = BlobStates(bucket.trainer), objects.training_run(MODEL, run_id)
    for act in (states.newest_two(MODEL, run_id), states.claim(line, token=9, by="x")):
        with pytest.raises(BrokenArtifact, match="is not used: "):
            await act
    return found.detail


async def test_a_state_as_its_trainer_wrote_it_is_gone_on_with(bucket: Bucket) -> None:
    await committed(bucket, 0, 1)
    assert await BlobStates(bucket.trainer).find_run(MODEL, RUN) == at_step(1)
    claimed = await BlobStates(bucket.trainer).claim(objects.training_run(MODEL, RUN), token=2, by="t")
    assert claimed == at_step(1)


async def test_a_state_that_was_altered_is_not_trained_on(bucket: Bucket) -> None:
    (marker,) = await committed(bucket, 1)
    plain = json.loads(bucket.raw.objects[marker])
    plain["tensors"] = [{"key": "default/evil", "sha256": "0" * 64, "size_bytes": 1}]
    await bucket.raw.put(marker, json.dumps(plain).encode())
    assert "no signature of these bytes" in await refusal(bucket)


async def test_a_state_that_was_made_up_after_the_newest_one_is_not_trained_on(bucket: Bucket) -> None:
    await committed(bucket, 1)
    await BlobStates(bucket.raw).commit(at_step(2), None)
    assert "step-00000002" in await refusal(bucket)


async def test_a_signed_state_of_another_step_or_run_is_not_trained_on(bucket: Bucket) -> None:
    (older, newer) = await committed(bucket, 1, 2)
    (other,) = await committed(bucket, 2, run_id="run-0000000000cd")
    for origin in (older, other):
        data = bucket.raw.objects[origin]
        await bucket.raw.put(newer, data)
        await bucket.raw.put(signature_key(newer, data), bucket.raw.objects[signature_key(origin, data)])
        assert "altered or moved" in await refusal(bucket)


async def test_a_claim_that_was_made_up_is_refused(bucket: Bucket) -> None:
    """It can hold a run up, as its deletion can; it can end none, and lead to no other state."""
    (first, _) = await committed(bucket, 1, 2)
    evil = {"claim": {"token": 99, "by": "x", "state": first, "failure": None}}
    key = objects.step_marker(objects.training_step(objects.training_run(MODEL, RUN), 3), 0)
    await bucket.raw.put(key, json.dumps(evil).encode())
    assert key in await refusal(bucket)


async def test_states_of_interactive_training_are_proven_too(bucket: Bucket) -> None:
    states: StepStates[InteractiveState] = InteractiveStates(bucket.trainer)
    marker = states.marker_of(await states.commit(interactive(1), None)).key
    reader = InteractiveStates(bucket.trainer)
    assert await reader.newest(MODEL) == await reader.of_version(MODEL, 1) == interactive(1)
    await bucket.raw.put(marker, bucket.raw.objects[marker] + b" ")
    for read in (reader.newest(MODEL), reader.of_version(MODEL, 1)):
        with pytest.raises(BrokenArtifact, match="is not used: no signature"):
            await read


async def test_signatures_stay_with_what_is_kept_and_go_with_what_is_removed(bucket: Bucket) -> None:
    """Else a state that a checkpoint names, or a claim, would be refused after old ones were removed."""
    states, line = BlobStates(bucket.trainer), objects.training_run(MODEL, RUN)
    await states.commit(at_step(0), None)
    await states.claim(line, token=2, by="t")
    for step in (1, 2, 3):
        await states.commit(at_step(step), None)
    await states.prune(RUN, MODEL, newest=1)
    left = set(bucket.raw.objects)
    assert {objects.parse_step_marker(key) for key in left} - {None} == {(1, 0), (3, 0)}
    for key in filter(objects.is_signed, left):
        assert await bucket.reader.read(key) is not None
    orphans = {key for key in left if (signed := objects.parse_signature(key)) and signed not in left}
    assert orphans == set()


async def test_what_an_operator_signs_while_its_run_goes_on_keeps_that_signature(bucket: Bucket) -> None:
    """A trainer that accepts what is unsigned looked at the old states before they were signed."""
    states, line = BlobStates(bucket.raw), objects.training_run(MODEL, RUN)
    await states.claim(line, token=2, by="t")
    for step in (1, 2):
        await states.commit(at_step(step), None)
    await states.prune(RUN, MODEL, newest=1)
    _, found = await unproven(bucket.raw, TrustedKeys.read(trusted_file(bucket.keys.folder)))
    await sign_all(bucket.raw, SigningKey.read(key_file(bucket.keys.folder, OPERATOR)), found)
    await states.prune(RUN, MODEL, newest=1)
    for key in filter(objects.is_signed, list(bucket.raw.objects)):
        assert await bucket.reader.read(key) is not None


async def test_the_registry_of_a_running_platform_refuses_a_manifest_that_was_altered(
    attacked: Attacked,
) -> None:
    """Through its rpc, with the keys that `upcycle up` made."""
    logins = load_or_make(attacked.data_dir)
    settings = S3Settings(
        endpoint=attacked.state["s3"]["endpoint"],
        bucket=attacked.state["s3"]["bucket"],
        access_key=SecretStr(logins.s3_access_key),
        secret_key=SecretStr(logins.s3_secret_key),
    )
    raw, key = S3BlobStore(settings), objects.policy_manifest(SERVED, 0)
    await raw.start()
    try:
        data = await raw.read(key)
        assert data is not None
        async with Platform(attacked.addresses) as platform:
            fork = ForkModelRequest(model="stolen", source_model=SERVED)
            signature = signature_key(key, data)
            genuine = await raw.read(signature)
            assert genuine is not None
            await raw.delete(signature)
            with pytest.raises(grpc.aio.AioRpcError, match="no signature of these bytes") as refused:
                await platform.registry.ForkModel(fork, timeout=10)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            await raw.put(signature, genuine)
            await platform.registry.ForkModel(fork, timeout=10)
        forked = objects.policy_manifest("stolen", 0)
        assert await raw.read(signature_key(forked, await raw.read(forked) or b"")) is not None
    finally:
        await raw.stop()
