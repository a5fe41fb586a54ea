"""Builds the reward grader; nothing connects before it is started."""

from blob_store import S3BlobStore
from event_bus import BusTimings, EventBus
from event_bus.topology import REWARD_GRADER
from reward_grader.adapters.fleet import GrpcEnvironments
from reward_grader.adapters.rubric import load_grader
from reward_grader.adapters.transcripts import BlobTranscripts
from reward_grader.handlers import RecordHandler
from reward_grader.settings import GraderSettings
from reward_grader.usecases import GradeTrajectory, Rubric
from service_kit import Service, run_main, utc_now


class _Environments:
    """Lets the channels go when the service stops."""

    name = "environments"

    def __init__(self, environments: GrpcEnvironments) -> None:
        self._environments = environments

    async def start(self) -> None:
        """Nothing: the first call connects."""

    async def stop(self) -> None:
        """Close the channels."""
        await self._environments.stop()

    def ready(self) -> str | None:
        """A replica that is away is a named wait of single trajectories."""
        return None


def build_app(settings: GraderSettings) -> Service:
    """The whole service. Needs a running event loop; connects at start."""
    service = Service("reward_grader", settings)
    store = service.add(S3BlobStore(settings.s3))
    environments = GrpcEnvironments(grade_timeout_s=settings.grade_timeout_s)
    service.add(_Environments(environments))
    rubric = Rubric(
        environment_weight=settings.environment_weight,
        extras=tuple(load_grader(one.path, one.weight, one.name) for one in settings.extra_graders),
        extra_timeout_s=settings.extra_timeout_s,
    )
    grade = GradeTrajectory(
        environments, BlobTranscripts(store), rubric, gone_after_s=settings.gone_after_s, now=utc_now
    )
    # Handlers and connection together must be done within the component's own bound.
    timings = BusTimings(drain_s=settings.drain_s * 0.6, close_s=settings.drain_s * 0.15)
    bus = EventBus(settings.bus, client_name="reward_grader", timings=timings)
    bus.subscribe(REWARD_GRADER, RecordHandler(grade, bus, now=utc_now), slots=settings.slots)
    service.add(bus)
    return service


def main() -> None:
    """Entry point of `upcycle-reward-grader`."""
    run_main("reward_grader", GraderSettings, build_app)


if __name__ == "__main__":
    main()
