"""protobuf <-> domain, nothing else."""

from dataclasses import replace

from engine_client import state_from_wire
from model_gateway.domain.routing import EngineRoute, ModelHead, RoutingView
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb


def view_from_wire(models: pb.ListModelsResponse, engines: pb.ListEnginesResponse) -> RoutingView:
    """What the registry says now."""
    heads = {one.model: head_from_wire(one) for one in models.models}
    return RoutingView(heads, tuple(engine_from_wire(one) for one in engines.engines))


def head_from_wire(model: registry_pb2.Model) -> ModelHead:
    """A model's head."""
    return ModelHead(model.model, model.head_version, model.head_checkpoint_id, model.created_at.seconds)


def engine_from_wire(lease: registry_pb2.EngineLease) -> EngineRoute:
    """A lease; a state that we do not know is not routed to."""
    return EngineRoute(
        engine_id=lease.engine_id,
        base_url=lease.base_url.rstrip("/"),
        model=lease.model,
        follows_head=lease.channel == common_pb2.CHANNEL_HEAD,
        version=lease.version,
        digest=lease.digest,
        held_versions=frozenset(lease.held_versions),
        state=state_from_wire(lease.state),
        renewal=lease.expires_at.ToJsonString(),
    )


def with_head(view: RoutingView, model: str, version: int, checkpoint_id: str) -> RoutingView:
    """The view after head of a model moved; a model that it lacks comes with the next poll."""
    known = view.models.get(model)
    if known is None:
        return view
    moved = replace(known, head_version=version, head_checkpoint_id=checkpoint_id)
    return replace(view, models={**view.models, model: moved})
