"""A whole registry with what surrounds it: a planner behind gRPC, a bus, policies to import."""

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message
from tests.facts import newest
from tests.support.waiting import until

from blob_store import S3BlobStore
from blob_store import ref as blob_ref
from checkpoint_registry.app import build_app
from checkpoint_registry.settings import CheckpointRegistrySettings
from event_bus import EventBus
from identities.entities import checkpoint_id
from identities.events import of_checkpoint, policy_published
from policy_files import manifest_bytes, manifest_ref, policy_digest
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import service_pb2 as taskset_service
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceServicer
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished
from upcycle.api.training.v1.training_pb2 import PolicyFile, PolicyManifest
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.rpc import connect, remote_errors

if TYPE_CHECKING:  # generated for type checkers only
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub as Stub

DIGEST = "d" * 64
TRAPS = 20
"""Tasks without a solution, where there are any."""
TRAINING_RUN = "run-00000000beef"


class PlannerStub(TasksetServiceServicer):
    """TasksetService, as far as the registry calls it; evaluations end at once with a rate per version."""

    def __init__(self, rates: dict[int, float]) -> None:
        self.rates = rates
        self.impossible: Mapping[int, bool] = {}
        """Whether each version passes the tasks that have no solution; without versions there are none."""
        self.runs: dict[str, taskset_pb2.Run] = {}
        self.requests: list[str] = []
        self.bus: EventBus | None = None

    async def GetTaskset(
        self, request: taskset_service.GetTasksetRequest, context: Any
    ) -> taskset_service.GetTasksetResponse:
        tasks = [taskset_pb2.Task(slug=f"t{index}", family=f"family-{index % 4}") for index in range(40)]
        if self.impossible:
            tasks += [taskset_pb2.Task(slug=f"x{at}", family=IMPOSSIBLE_FAMILY) for at in range(TRAPS)]
        return taskset_service.GetTasksetResponse(
            taskset=taskset_pb2.Taskset(
                name=request.name, digest=DIGEST, split=common_pb2.SPLIT_HELD_OUT, tasks=tasks
            )
        )

    async def GetRun(
        self, request: taskset_service.GetRunRequest, context: Any
    ) -> taskset_service.GetRunResponse:
        if request.run_id == TRAINING_RUN:
            spec = taskset_pb2.RunSpec(
                purpose=common_pb2.PURPOSE_TRAIN,
                gate=taskset_pb2.GateConfig(taskset="held-out", attempts=2, regression_margin=0.1),
            )
            return taskset_service.GetRunResponse(run=taskset_pb2.Run(run_id=TRAINING_RUN, spec=spec))
        run = self.runs.get(request.run_id)
        if run is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no run {request.run_id}")
            raise AssertionError
        results = list(self._results(run.spec)) if request.include_results else []
        return taskset_service.GetRunResponse(run=run, results=results)

    def _results(self, spec: taskset_pb2.RunSpec) -> Iterator[taskset_pb2.EpisodeResult]:
        version = spec.policy.pinned_version
        versions = (version, spec.against_version) if spec.HasField("against_version") else (version,)
        for index in range(40 * spec.group_size):
            member = index // 40
            played = versions[member % len(versions)]
            yield taskset_pb2.EpisodeResult(
                task_slug=f"t{index % 40}",
                family=f"family-{index % 4}",
                member=member,
                status=taskset_pb2.EPISODE_STATUS_GRADED,
                success=(index * 7919) % 100 < 100 * self.rates[played],
                sampled_by=common_pb2.VersionSpan(oldest=played, newest=played),
            )
        for index in range(TRAPS * spec.group_size if self.impossible and not spec.families else 0):
            member = index // TRAPS
            played = versions[member % len(versions)]
            yield taskset_pb2.EpisodeResult(
                task_slug=f"x{index % TRAPS}",
                family=IMPOSSIBLE_FAMILY,
                member=member,
                status=taskset_pb2.EPISODE_STATUS_GRADED,
                success=self.impossible[played],
                sampled_by=common_pb2.VersionSpan(oldest=played, newest=played),
            )

    async def ListRuns(
        self, request: taskset_service.ListRunsRequest, context: Any
    ) -> taskset_service.ListRunsResponse:
        assert request.unfinished  # evaluations end at once here
        return taskset_service.ListRunsResponse()

    async def SubmitRun(
        self, request: taskset_service.SubmitRunRequest, context: Any
    ) -> taskset_service.SubmitRunResponse:
        run_id = "run-" + hashlib.sha256(request.request_id.encode()).hexdigest()[:12]
        if run_id not in self.runs:
            self.requests.append(request.request_id)
            self.runs[run_id] = taskset_pb2.Run(
                run_id=run_id, spec=request.spec, state=taskset_pb2.RUN_STATE_COMPLETED, taskset_digest=DIGEST
            )
            self.runs[run_id].finished_at.GetCurrentTime()
            await self._announce(run_id, request.spec)
        return taskset_service.SubmitRunResponse(run=self.runs[run_id])

    async def ordered(self, number: int) -> None:
        """Waits until so many evaluations were ordered."""
        await until(lambda: len(self.requests) >= number, f"{number} evaluations to be ordered")

    async def _announce(self, run_id: str, spec: taskset_pb2.RunSpec) -> None:
        assert self.bus is not None
        finished = taskset_events.RunFinished(
            run_id=run_id, model=spec.policy.model, purpose=common_pb2.PURPOSE_EVAL, policy=spec.policy
        )
        await self.bus.publish(finished, model=spec.policy.model, event_id=f"run.finished/{run_id}")


@dataclass
class Stack:
    """A registry under test and what surrounds it."""

    settings: CheckpointRegistrySettings
    bus: EventBus
    planner: PlannerStub
    facts: list[Message] = field(default_factory=list)

    @asynccontextmanager
    async def registry(self) -> "AsyncIterator[Stub]":
        service = build_app(self.settings)
        await service.start()
        channel = connect(f"127.0.0.1:{self.settings.grpc_port}")
        try:
            yield RegistryServiceStub(channel)
        finally:
            await channel.close()
            assert await service.stop()

    async def fact(self, kind: type[Message], model: str) -> Any:
        """The newest fact of a kind about a model, waited for."""
        found = await until(lambda: newest(self.bus, kind, model=model), f"{kind.__name__} about {model}")
        return found.message

    async def publish(self, model: str, version: int) -> PolicyManifest:
        """Store the manifest of a version whose files nothing reads, and announce it."""
        manifest = await self.store(model, version)
        event = PolicyPublished(
            model=model, version=version, digest=manifest.digest, run_id="run-a", step=version
        )
        event.manifest.CopyFrom(blob_ref.to_wire(manifest_ref(manifest)))
        event.published_at.GetCurrentTime()
        await self.bus.publish(event, model=model, event_id=policy_published(model, version))
        return manifest

    async def save(self, model: str, version: int, sources: Mapping[str, int] | None = None) -> None:
        """The same as a candidate."""
        manifest = await self.store(model, version)
        saved = CheckpointSaved(
            checkpoint_id=checkpoint_id(model, version),
            model=model,
            version=version,
            parent_checkpoint_id=checkpoint_id(model, version - 1),
            digest=manifest.digest,
            manifest=blob_ref.to_wire(manifest_ref(manifest)),
            run_id=TRAINING_RUN,
            step=version,
            sources=sources,
        )
        saved.saved_at.GetCurrentTime()
        await self.bus.publish(saved, model=model, event_id=of_checkpoint("saved", saved.checkpoint_id))

    async def store(self, model: str, version: int) -> PolicyManifest:
        """Its manifest, as the trainer stores it."""
        store, manifest = S3BlobStore(self.settings.s3), manifest_of(model, version)
        await store.start()
        await store.put(manifest_ref(manifest).key, manifest_bytes(manifest))
        await store.stop()
        return manifest


def manifest_of(model: str, version: int) -> PolicyManifest:
    """Of files with other content than those of every other version."""
    shas = {name: hashlib.sha256(f"{model}/{version}/{name}".encode()).hexdigest() for name in policy()}
    manifest = PolicyManifest(model=model, version=version, digest=policy_digest(shas))
    for name, sha256 in shas.items():
        blob = common_pb2.BlobRef(key=f"files/{sha256}", sha256=sha256, size_bytes=1)
        manifest.files.append(PolicyFile(name=name, blob=blob))
    return manifest


def weights(fill: int) -> bytes:
    header = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes([fill]) * 16


def policy(fill: int = 0) -> dict[str, bytes]:
    return {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "model.safetensors": weights(fill),
    }


async def upload(
    stub: "Stub", model: str, files: dict[str, bytes], *, if_not_exists: bool = False
) -> pb.ImportModelResponse:
    async def messages() -> AsyncIterator[pb.ImportModelRequest]:
        header = pb.ImportHeader(model=model, if_not_exists=if_not_exists)
        yield pb.ImportModelRequest(header=header)
        for name, data in files.items():
            for start in range(0, max(len(data), 1), 10):
                chunk = pb.FileChunk(name=name, data=data[start : start + 10])
                yield pb.ImportModelRequest(chunk=chunk)

    with remote_errors("import"):
        response: pb.ImportModelResponse = await stub.ImportModel(messages())
    return response
