"""Builds the rollout sampler; nothing connects before it is started."""

import secrets
from collections.abc import Sequence

from blob_store import BlobStore, S3BlobStore
from environment_client import EnvironmentClient, EnvironmentTimeouts
from event_bus import BusTimings, EventBus, QueueSubscriber
from event_bus.topology import ROLLOUT_SAMPLER_EVAL, ROLLOUT_SAMPLER_TRAIN
from grpc_edge import Peer
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.leases import LeaseCache
from rollout_sampler.adapters.policies import PolicyFiles
from rollout_sampler.adapters.trajectories import StoredTrajectories
from rollout_sampler.handlers import episode_router
from rollout_sampler.loops import FollowEngines
from rollout_sampler.settings import RolloutSamplerSettings
from rollout_sampler.usecases.play_episode import PlayEpisode, SamplerDeps
from rollout_sampler.usecases.turns import PlayLimits
from service_kit.background import Worker
from service_kit.clock import utc_now
from service_kit.component import Closing, Component
from service_kit.main import run_main
from service_kit.service import Service
from signed_objects import signed_store
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub

NAME = "rollout_sampler"


def build_play(
    settings: RolloutSamplerSettings, store: BlobStore, leases: LeaseCache
) -> tuple[PlayEpisode, Sequence[Component]]:
    """The use case, and the connections that the service closes. Needs a running event loop."""
    policies = PolicyFiles(store, settings.cache_dir)
    engines = LeasedEngines(
        leases,
        policies.weights_digest,
        turn_timeout_s=settings.turn_timeout_s,
        only_https=settings.tls.engines,
        look_s=settings.engine_look_s,
    )
    timeouts = EnvironmentTimeouts(
        open_s=settings.open_timeout_s,
        tool_s=settings.tool_timeout_s,
        unreachable_s=settings.environment_retry_s,
    )
    environments = EnvironmentClient(settings.peers.environments, timeouts, api_key=settings.access.sent)
    deps = SamplerDeps(environments, engines, policies, StoredTrajectories(store))
    play = PlayEpisode(deps, _limits(settings), now=utc_now, new_nonce=lambda: secrets.token_hex(4))
    return play, (Closing("engines", engines.stop), Closing("environments", environments.stop))


def build_app(settings: RolloutSamplerSettings) -> Service:
    """The whole service. Needs a running event loop; connects at start."""
    service = Service(NAME, settings)
    store = signed_store(service.add(S3BlobStore(settings.s3)), settings.signing, NAME)
    registry = service.add(Peer("registry", settings.peers.registry, api_key=settings.access.sent))
    leases = LeaseCache(RegistryServiceStub(registry.channel), max_age_s=settings.engine_lease_age_s)
    play, connections = build_play(settings, store, leases)
    for component in connections:
        service.add(component)
    # Handlers and connection together must be done within the component's own bound.
    timings = BusTimings(drain_s=settings.drain_s * 0.6, close_s=settings.drain_s * 0.15)
    bus = EventBus(settings.bus, client_name=NAME, timings=timings)
    slots = {ROLLOUT_SAMPLER_TRAIN: settings.train_slots, ROLLOUT_SAMPLER_EVAL: settings.eval_slots}
    queues: list[QueueSubscriber] = []
    for spec, wanted in slots.items():
        if wanted:
            router, queue = episode_router(
                spec, play, bus, now=utc_now, slots=wanted, can_sample=leases.serves
            )
            bus.include_router(router)
            queues.append(queue)
    service.add(bus)
    follow = FollowEngines(leases, queues, every_s=settings.engine_lease_age_s)
    service.add(Worker("followed_engines", follow.run))
    return service


def _limits(settings: RolloutSamplerSettings) -> PlayLimits:
    return PlayLimits(
        episode_s=settings.episode_timeout_s,
        late_start_s=settings.late_start_s,
        retry_s=settings.retry_s,
        max_tool_calls_per_turn=settings.max_tool_calls_per_turn,
        max_tool_result_chars=settings.max_tool_result_chars,
    )


def main() -> None:
    """Entry point of `upcycle-rollout-sampler`."""
    run_main(NAME, RolloutSamplerSettings, build_app)


if __name__ == "__main__":
    main()
