"""A second checkpoint of the model that a stack serves, made without a training run.

It is the base with a little noise, published and announced as the trainer publishes and announces: files, the
proof that engines check after a reload, manifest, `checkpoint.saved`.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.stacks import MODEL, POLICY_DIR, Bench
from blob_store import S3BlobStore
from event_bus import EventBus
from grpo_math.packing import TrainingRow
from grpo_trainer.learner.packed_model import PackedModel, load_model
from grpo_trainer.learner.policy_export import export_policy
from grpo_trainer.learner.torch_learner import canary
from identities import events
from identities.entities import checkpoint_id
from local_stack.signing import operator_settings
from policy_files import PolicyFacts, load, manifest_ref, upload
from signed_objects import signed_store
from upcycle.api.common.v1.common_pb2 import BlobRef
from upcycle.api.registry.v1.registry_pb2 import Checkpoint
from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest, SetHeadRequest
from upcycle.api.training.v1.events_pb2 import CheckpointSaved
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyManifest

VERSION = 1
_NOISE = 0.01
_ROWS, _TOKENS = 8, 32
_KNOWN_S = 60.0


async def two_checkpoints(running: Bench, scratch: Path) -> list[Checkpoint]:
    """Version 0 and a version 1 that the registry knows and nothing judges."""
    proofs = await asyncio.to_thread(noisy_copy, POLICY_DIR, scratch / "noisy")
    bucket = S3BlobStore(running.stack.s3)
    store = signed_store(bucket, operator_settings(running.stack.settings.data_dir), "benchmark")
    await bucket.start()
    facts = PolicyFacts(
        MODEL, VERSION, datetime.now(UTC), parent=await load(store, MODEL, 0), canary=tuple(proofs)
    )
    manifest = await upload(store, scratch / "noisy", facts)
    await bucket.stop()
    bus = EventBus(running.stack.bus, client_name="benchmark")
    await bus.start()
    saved = _saved(manifest)
    await bus.publish(saved, model=MODEL, event_id=events.of_checkpoint("saved", saved.checkpoint_id))
    await bus.stop()
    return await _known(running, 2)


async def set_head(running: Bench, target: Checkpoint) -> None:
    """Make it the version that production uses."""
    request = SetHeadRequest(
        model=MODEL, checkpoint_id=target.checkpoint_id, actor="benchmark", reason="back and forth"
    )
    await running.platform.registry.SetHead(request, timeout=10)


def noisy_copy(policy: Path, directory: Path, *, seed: int = 1) -> list[CanaryRow]:
    """Writes a policy directory with other weights; what they make of some tokens."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = load_model(policy, device="cpu")
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std() * _NOISE)
    export_policy(model.module, policy, directory)
    proofs = canary(model, _rows(model))
    return [CanaryRow(token_ids=ids, logprobs=logprobs) for ids, logprobs in proofs]


def _rows(model: PackedModel) -> list[TrainingRow]:
    ids = torch.randint(model.module.config.vocab_size, (_ROWS, _TOKENS))
    trained, unknown = torch.zeros(_TOKENS, dtype=torch.bool), torch.zeros(_TOKENS)
    return [TrainingRow(f"canary/{n}", "canary", row, trained, unknown, 0.0) for n, row in enumerate(ids)]


def _saved(manifest: PolicyManifest) -> CheckpointSaved:
    ref = manifest_ref(manifest)
    event = CheckpointSaved(
        checkpoint_id=checkpoint_id(MODEL, VERSION),
        model=MODEL,
        version=VERSION,
        parent_checkpoint_id=checkpoint_id(MODEL, 0),
        digest=manifest.digest,
        manifest=BlobRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes),
        run_id="run-benchmark",
    )
    event.saved_at.GetCurrentTime()
    return event


async def _known(running: Bench, count: int) -> list[Checkpoint]:
    async with asyncio.timeout(_KNOWN_S):
        while True:
            request = ListCheckpointsRequest(model=MODEL)
            listed = (await running.platform.registry.ListCheckpoints(request, timeout=10)).checkpoints
            if len(listed) >= count:
                return list(listed)
            await asyncio.sleep(0.1)
