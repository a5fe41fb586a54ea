"""What the registry says, as the gateway routes by it."""

from dataclasses import replace
from datetime import datetime

from engine_client import state_from_wire
from identities.objects import PolicyFolder
from model_gateway.domain.canary import Canary
from model_gateway.domain.routing import EngineRoute, ModelHead, RoutingView
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.moments import moment_of


def view_from_wire(models: pb.ListModelsResponse, engines: pb.ListEnginesResponse) -> RoutingView:
    """What the registry says now."""
    heads = {one.model: head_from_wire(one) for one in models.models}
    return RoutingView(heads, tuple(engine_from_wire(one) for one in engines.engines))


def promoted_since(view: RoutingView, models: pb.ListModelsResponse) -> list[tuple[str, int, datetime]]:
    """Models whose head is further on than the view knows: model, its head's version, since when."""
    return [
        (one.model, one.head_version, moment_of(one.promoted_at))
        for one in models.models
        if one.model in view.models
        and one.head_version > view.models[one.model].head_version
        and one.HasField("promoted_at")
    ]


def head_from_wire(model: registry_pb2.Model) -> ModelHead:
    """A model's head."""
    release = model.canary_release
    return ModelHead(
        model=model.model,
        head_version=model.head_version,
        head_checkpoint_id=model.head_checkpoint_id,
        created_s=model.created_at.seconds,
        canary=canary_from_wire(release) if model.HasField("canary_release") else None,
    )


def canary_from_wire(release: registry_pb2.CanaryRelease) -> Canary | None:
    """None: it ended."""
    is_under_way = release.share > 0 or release.shadow_share > 0
    return Canary(release.version, release.share, release.shadow_share) if is_under_way else None


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
        held_policies=frozenset(PolicyFolder(one.model, one.version) for one in lease.held_policies),
        failures=tuple((PolicyFolder(one.model, one.version), one.detail) for one in lease.hold_failures),
        kind=lease.engine_kind,
    )


def with_head(view: RoutingView, model: str, version: int, checkpoint_id: str) -> RoutingView:
    """The view after head of a model moved, which ends its canary release; a model that it lacks comes with
    the next poll."""
    known = view.models.get(model)
    if known is None:
        return view
    moved = replace(known, head_version=version, head_checkpoint_id=checkpoint_id, canary=None)
    return replace(view, models={**view.models, model: moved})


def with_release(view: RoutingView, release: registry_pb2.CanaryRelease) -> RoutingView:
    """The view after a canary release changed."""
    known = view.models.get(release.model)
    if known is None:
        return view
    changed = replace(known, canary=canary_from_wire(release))
    return replace(view, models={**view.models, release.model: changed})
