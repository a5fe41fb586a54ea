"""RegistryService and KeyService: decode, use case, encode."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import grpc
import grpc.aio

from checkpoint_registry import wire
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.domain.errors import (
    AlreadyHead,
    GateDecides,
    HeadMoved,
    KeysNeedAccess,
    ModelExists,
    NoCanaryRelease,
    NoEngine,
    NoRoom,
    OtherBase,
    PeerRefused,
    ReleaseUnderWay,
    TooManyKeys,
    UnknownCheckpoint,
    UnknownKey,
    UnknownModel,
    UnknownVersion,
    VersionConflict,
    VersionRemoved,
)
from checkpoint_registry.usecases.canary_releases import CanaryReleases, ReleaseOrder
from checkpoint_registry.usecases.holds import HoldPolicies
from checkpoint_registry.usecases.keys import ManageKeys
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.models import FilePart, HeadOrder, ManageModels
from checkpoint_registry.usecases.watch_reports import ReportWatches
from checkpoint_registry.wire import keys as key_wire
from grpc_edge.access import current_caller, with_caller
from service_kit.errors import InvalidRequest
from signed_objects import UnprovenBlob
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.api.keys.v1 import service_pb2 as kpb
from upcycle.api.keys.v1.service_pb2_grpc import KeyServiceServicer
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
    OtherBase: grpc.StatusCode.FAILED_PRECONDITION,
    NoEngine: grpc.StatusCode.FAILED_PRECONDITION,
    NoRoom: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnknownKey: grpc.StatusCode.NOT_FOUND,
    TooManyKeys: grpc.StatusCode.RESOURCE_EXHAUSTED,
    KeysNeedAccess: grpc.StatusCode.FAILED_PRECONDITION,
    AlreadyHead: grpc.StatusCode.FAILED_PRECONDITION,
    ReleaseUnderWay: grpc.StatusCode.FAILED_PRECONDITION,
    NoCanaryRelease: grpc.StatusCode.FAILED_PRECONDITION,
    UnprovenBlob: grpc.StatusCode.FAILED_PRECONDITION,
}

Context = grpc.aio.ServicerContext[Any, Any]


class RegistryServicer(RegistryServiceServicer):
    """See proto/upcycle/api/registry/v1/service.proto."""

    def __init__(
        self,
        models: ManageModels,
        store: SqlModelStore,
        versions: SqlVersionStore,
        leases: EngineLeases,
        holds: HoldPolicies,
        releases: CanaryReleases,
        watches: ReportWatches,
    ) -> None:
        self._holds = holds
        self._releases = releases
        self._watches = watches
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
        """A manual move of head: compare-and-set. Services have one key: with it no head is moved past the
        gate."""
        expected = request.expected_revision if request.HasField("expected_revision") else None
        caller = current_caller()
        model, move = await self._models.set_head(
            HeadOrder(request.model, request.checkpoint_id, request.actor, request.reason, caller.name),
            expected_revision=expected,
            unless_gated=request.unless_gated or caller.role == Role.ROLE_SERVICE,
        )
        return pb.SetHeadResponse(model=wire.model_to_wire(model), move=wire.move_to_wire(move))

    async def ListHeadMoves(
        self, request: pb.ListHeadMovesRequest, context: Context
    ) -> pb.ListHeadMovesResponse:
        """The audit, oldest first."""
        moves = await self._store.head_moves(request.model)
        return pb.ListHeadMovesResponse(moves=[wire.move_to_wire(move) for move in moves])

    async def GetHeadWatch(
        self, request: pb.GetHeadWatchRequest, context: Context
    ) -> pb.GetHeadWatchResponse:
        """What the watch of head played, and what it does now."""
        return pb.GetHeadWatchResponse(**asdict(await self._watches.of(request.model)))

    async def RenewEngineLease(
        self, request: pb.RenewEngineLeaseRequest, context: Context
    ) -> pb.RenewEngineLeaseResponse:
        """An engine supervisor says that its engine is alive."""
        lease = await self._leases.renew(wire.lease_from_wire(request.lease, request.ttl_s))
        holds = await self._holds.of_engine(lease.engine_id)
        return pb.RenewEngineLeaseResponse(
            lease=wire.lease_to_wire(lease), holds=map(wire.hold_to_wire, holds)
        )

    async def HoldPolicy(self, request: pb.HoldPolicyRequest, context: Context) -> pb.HoldPolicyResponse:
        """A version beside what an engine follows."""
        hold, lease = await self._holds.hold(wire.hold_from_wire(request, _holder(request.holder)))
        return pb.HoldPolicyResponse(hold=wire.hold_to_wire(hold), engine=wire.lease_to_wire(lease))

    async def ReleasePolicy(
        self, request: pb.ReleasePolicyRequest, context: Context
    ) -> pb.ReleasePolicyResponse:
        """The end of a hold."""
        released = await self._holds.release(request.model, request.version, _holder(request.holder))
        return pb.ReleasePolicyResponse(released=released)

    async def ListHolds(self, request: pb.ListHoldsRequest, context: Context) -> pb.ListHoldsResponse:
        """Live holds."""
        return pb.ListHoldsResponse(holds=map(wire.hold_to_wire, await self._holds.of_model(request.model)))

    async def SetCanaryRelease(
        self, request: pb.SetCanaryReleaseRequest, context: Context
    ) -> pb.SetCanaryReleaseResponse:
        """A share of the conversations for another checkpoint."""
        expected = request.expected_head_revision if request.HasField("expected_head_revision") else None
        release, lease = await self._releases.set_release(
            ReleaseOrder(
                request.model,
                request.checkpoint_id,
                request.share,
                request.shadow_share,
                request.actor,
                request.reason,
                current_caller().name,
            ),
            head_revision=expected,
        )
        return pb.SetCanaryReleaseResponse(
            release=wire.release_to_wire(release), engine=wire.lease_to_wire(lease)
        )

    async def EndCanaryRelease(
        self, request: pb.EndCanaryReleaseRequest, context: Context
    ) -> pb.EndCanaryReleaseResponse:
        """All conversations for head again."""
        ended = await self._releases.end(
            request.model, actor=request.actor, reason=request.reason, caller=current_caller().name
        )
        return pb.EndCanaryReleaseResponse(release=wire.release_to_wire(ended))

    async def ListCanaryReleases(
        self, request: pb.ListCanaryReleasesRequest, context: Context
    ) -> pb.ListCanaryReleasesResponse:
        """The audit, oldest first."""
        changes = await self._releases.changes(request.model)
        return pb.ListCanaryReleasesResponse(changes=map(wire.release_to_wire, changes))

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:
        """Live leases."""
        leases = await self._leases.live(request.model, int(request.channel))
        return pb.ListEnginesResponse(engines=[wire.lease_to_wire(lease) for lease in leases])


class KeyServicer(KeyServiceServicer):
    """See proto/upcycle/api/keys/v1/service.proto."""

    def __init__(self, keys: ManageKeys) -> None:
        self._keys = keys

    async def CreateKey(self, request: kpb.CreateKeyRequest, context: Context) -> kpb.CreateKeyResponse:
        """Its text travels in this answer alone."""
        key, text = await self._keys.create(key_wire.order_from_wire(request), current_caller())
        return kpb.CreateKeyResponse(key=key_wire.key_to_wire(key), secret=text)

    async def ListKeys(self, request: kpb.ListKeysRequest, context: Context) -> kpb.ListKeysResponse:
        """Oldest first."""
        found = await self._keys.listed(include_ended=request.include_ended)
        return kpb.ListKeysResponse(keys=map(key_wire.key_to_wire, found))

    async def RevokeKey(self, request: kpb.RevokeKeyRequest, context: Context) -> kpb.RevokeKeyResponse:
        """For good."""
        revoked = await self._keys.revoke(request.key_id, current_caller())
        return kpb.RevokeKeyResponse(key=key_wire.key_to_wire(revoked))

    async def ListValidKeys(
        self, request: kpb.ListValidKeysRequest, context: Context
    ) -> kpb.ListValidKeysResponse:
        """What another server keeps."""
        found = await self._keys.valid_keys(request.known_digest, request.used_key_ids)
        if found is None:
            return kpb.ListValidKeysResponse(digest=request.known_digest)
        return key_wire.valid_keys_to_wire(found)


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


def _holder(name: str) -> str:
    """As it is kept: a user holds and releases for itself, and no other user, nor a service, in its name."""
    return with_caller(name) if current_caller().role == Role.ROLE_USER else name
