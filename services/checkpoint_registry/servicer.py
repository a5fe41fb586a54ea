"""RegistryService: decode, use case, encode."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from checkpoint_registry import wire
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.domain.errors import (
    GateDecides,
    HeadMoved,
    ModelExists,
    PeerRefused,
    UnknownCheckpoint,
    UnknownModel,
    UnknownVersion,
    VersionConflict,
    VersionRemoved,
)
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.models import FilePart, HeadOrder, ManageModels
from service_kit.errors import InvalidRequest
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceServicer

STATUS_OF = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownModel: grpc.StatusCode.NOT_FOUND,
    UnknownCheckpoint: grpc.StatusCode.NOT_FOUND,
    UnknownVersion: grpc.StatusCode.NOT_FOUND,
    VersionRemoved: grpc.StatusCode.FAILED_PRECONDITION,
    ModelExists: grpc.StatusCode.ALREADY_EXISTS,
    VersionConflict: grpc.StatusCode.FAILED_PRECONDITION,
    HeadMoved: grpc.StatusCode.ABORTED,
    GateDecides: grpc.StatusCode.FAILED_PRECONDITION,
    PeerRefused: grpc.StatusCode.FAILED_PRECONDITION,
}

Context = grpc.aio.ServicerContext[Any, Any]


class RegistryServicer(RegistryServiceServicer):
    """See proto/upcycle/api/registry/v1/service.proto."""

    def __init__(
        self, models: ManageModels, store: SqlModelStore, versions: SqlVersionStore, leases: EngineLeases
    ) -> None:
        self._models = models
        self._store = store
        self._versions = versions
        self._leases = leases

    async def ImportModel(
        self, request_iterator: AsyncIterator[pb.ImportModelRequest], context: Context
    ) -> pb.ImportModelResponse:
        """Client stream: a header, then the files."""
        header = await _header(request_iterator)
        imported = await self._models.import_model(
            header.model, _parts(request_iterator), if_not_exists=header.if_not_exists
        )
        return pb.ImportModelResponse(
            model=wire.model_to_wire(imported.model),
            base=wire.checkpoint_to_wire(imported.base),
            created=imported.created,
        )

    async def ForkModel(self, request: pb.ForkModelRequest, context: Context) -> pb.ForkModelResponse:
        """A new model out of a checkpoint."""
        forked = await self._models.fork(request.source_model, request.source_checkpoint_id, request.model)
        return pb.ForkModelResponse(
            model=wire.model_to_wire(forked.model), base=wire.checkpoint_to_wire(forked.base)
        )

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """A model with its head and its base."""
        model = await self._store.model(request.model)
        head = await self._store.checkpoint(model.head_checkpoint_id)
        base = head if head.version == 0 else await self._store.version(request.model, 0)
        return pb.GetModelResponse(
            model=wire.model_to_wire(model),
            head=wire.checkpoint_to_wire(head),
            base=wire.checkpoint_to_wire(base),
        )

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """All models by slug."""
        models = await self._store.models()
        return pb.ListModelsResponse(models=[wire.model_to_wire(model) for model in models])

    async def GetCheckpoint(
        self, request: pb.GetCheckpointRequest, context: Context
    ) -> pb.GetCheckpointResponse:
        """By id or by version."""
        by_version = request.HasField("version")
        if by_version == bool(request.checkpoint_id):
            raise InvalidRequest("give exactly one of checkpoint_id and version")
        if by_version:
            checkpoint = await self._store.version(request.model, request.version)
        else:
            checkpoint = await self._store.checkpoint(request.checkpoint_id)
            if request.model and checkpoint.model != request.model:
                raise UnknownCheckpoint(
                    f"checkpoint {request.checkpoint_id!r} is not one of {request.model!r}"
                )
        return pb.GetCheckpointResponse(checkpoint=wire.checkpoint_to_wire(checkpoint))

    async def GetVersion(self, request: pb.GetVersionRequest, context: Context) -> pb.GetVersionResponse:
        """A published version, checkpoint or not."""
        found = await self._versions.version(request.model, request.version)
        return pb.GetVersionResponse(version=wire.version_to_wire(found))

    async def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: Context
    ) -> pb.ListCheckpointsResponse:
        """Oldest first."""
        found = await self._store.checkpoints(request.model)
        return pb.ListCheckpointsResponse(checkpoints=[wire.checkpoint_to_wire(one) for one in found])

    async def SetHead(self, request: pb.SetHeadRequest, context: Context) -> pb.SetHeadResponse:
        """A manual move of head: compare-and-set."""
        expected = request.expected_revision if request.HasField("expected_revision") else None
        model, move = await self._models.set_head(
            HeadOrder(request.model, request.checkpoint_id, request.actor, request.reason),
            expected_revision=expected,
            unless_gated=request.unless_gated,
        )
        return pb.SetHeadResponse(model=wire.model_to_wire(model), move=wire.move_to_wire(move))

    async def ListHeadMoves(
        self, request: pb.ListHeadMovesRequest, context: Context
    ) -> pb.ListHeadMovesResponse:
        """The audit, oldest first."""
        moves = await self._store.head_moves(request.model)
        return pb.ListHeadMovesResponse(moves=[wire.move_to_wire(move) for move in moves])

    async def RenewEngineLease(
        self, request: pb.RenewEngineLeaseRequest, context: Context
    ) -> pb.RenewEngineLeaseResponse:
        """An engine supervisor says that its engine is alive."""
        lease = await self._leases.renew(wire.lease_from_wire(request.lease, request.ttl_s))
        return pb.RenewEngineLeaseResponse(lease=wire.lease_to_wire(lease))

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:
        """Live leases."""
        leases = await self._leases.live(request.model, int(request.channel))
        return pb.ListEnginesResponse(engines=[wire.lease_to_wire(lease) for lease in leases])


async def _header(requests: AsyncIterator[pb.ImportModelRequest]) -> pb.ImportHeader:
    async for request in requests:
        if request.WhichOneof("part") == "header":
            return request.header
        break
    raise InvalidRequest("the first message of ImportModel must be its header")


async def _parts(requests: AsyncIterator[pb.ImportModelRequest]) -> AsyncIterator[FilePart]:
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise InvalidRequest("after the header, ImportModel takes chunks of files only")
        yield FilePart(request.chunk.name, request.chunk.data)
