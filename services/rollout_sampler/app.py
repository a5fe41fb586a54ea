"""Builds the rollout sampler; nothing connects before it is started."""

import secrets
from collections.abc import Awaitable, Callable, Sequence

from blob_store import BlobStore, S3BlobStore
from event_bus import BusTimings, EventBus
from event_bus.topology import ROLLOUT_SAMPLER_EVAL, ROLLOUT_SAMPLER_TRAIN
from grpc_edge import Peer
from rollout_sampler.adapters.bodies import BlobBodies
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.fleet import FleetTimings, GrpcEnvironments
from rollout_sampler.adapters.leases import Leases
from rollout_sampler.adapters.policies import EngineFormats, PolicyFiles
from rollout_sampler.handlers import EpisodeHandler
from rollout_sampler.settings import SamplerSettings
from rollout_sampler.usecases import Outside, PlayEpisode, PlayLimits
from service_kit import Component, Service, run_main, utc_now
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub


class _Closing:
    """A component for adapters that only have to be closed."""

    def __init__(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._close = close

    async def start(self) -> None:
        """Nothing: the first use connects."""

    async def stop(self) -> None:
        """Let the connections go."""
        await self._close()

    def ready(self) -> str | None:
        """Peers that are away are named waits of single episodes."""
        return None


def build_play(settings: SamplerSettings, store: BlobStore) -> tuple[PlayEpisode, Sequence[Component]]:
    """The use case, and the connections it holds. Needs a running event loop."""
    registry = Peer("registry", settings.peers.registry)
    leases = Leases(RegistryServiceStub(registry.channel), max_age_s=settings.engine_lease_age_s)
    files = PolicyFiles(store, settings.cache_dir)
    engines = LeasedEngines(leases, files.digest, turn_timeout_s=settings.turn_timeout_s)
    timings = FleetTimings(
        open_s=settings.open_timeout_s,
        tool_s=settings.tool_timeout_s,
        patience_s=settings.environment_patience_s,
    )
    environments = GrpcEnvironments(settings.peers.environments, timings)
    formats = EngineFormats(files, engines.version_now)
    outside = Outside(environments, engines, formats, BlobBodies(store))
    play = PlayEpisode(outside, _limits(settings), now=utc_now, new_nonce=lambda: secrets.token_hex(4))
    held = (registry, _Closing("engines", engines.stop), _Closing("environments", environments.stop))
    return play, held


def build_app(settings: SamplerSettings) -> Service:
    """The whole service. Needs a running event loop; connects at start."""
    service = Service("rollout_sampler", settings)
    store = service.add(S3BlobStore(settings.s3))
    play, held = build_play(settings, store)
    for component in held:
        service.add(component)
    # Handlers and connection together must be done within the component's own bound.
    timings = BusTimings(drain_s=settings.drain_s * 0.6, close_s=settings.drain_s * 0.15)
    bus = EventBus(settings.bus, client_name="rollout_sampler", timings=timings)
    for pool, spec, slots in (
        ("train", ROLLOUT_SAMPLER_TRAIN, settings.train_slots),
        ("eval", ROLLOUT_SAMPLER_EVAL, settings.eval_slots),
    ):
        if slots:
            handler = EpisodeHandler(pool, play, bus, now=utc_now, slots=slots)
            bus.subscribe(spec, handler, slots=slots)
    service.add(bus)
    return service


def _limits(settings: SamplerSettings) -> PlayLimits:
    return PlayLimits(
        episode_s=settings.episode_timeout_s,
        late_start_s=settings.late_start_s,
        patience_s=settings.patience_s,
        max_tool_calls_per_turn=settings.max_tool_calls_per_turn,
        max_tool_result_chars=settings.max_tool_result_chars,
    )


def main() -> None:
    """Entry point of `upcycle-rollout-sampler`."""
    run_main("rollout_sampler", SamplerSettings, build_app)


if __name__ == "__main__":
    main()
