"""Builds the reward grader; nothing connects before it is started."""

from blob_store import S3BlobStore
from environment_client import EnvironmentClient, EnvironmentTimeouts
from event_bus import BusTimings, EventBus
from grpc_edge import GrpcServer
from grpc_edge.key_follower import access_of
from reward_grader.adapters.extra_graders import load_grader
from reward_grader.adapters.judges import JudgeServers
from reward_grader.adapters.recorded_sessions import RecordedSessions
from reward_grader.adapters.transcripts import GraderTranscripts
from reward_grader.domain import ExtraGraders, Judge, JudgeLimits
from reward_grader.handlers import trajectory_router
from reward_grader.servicer import STATUS_OF, GradingServicer
from reward_grader.settings import RewardGraderSettings
from reward_grader.usecases import GradeTrajectory
from service_kit.clock import utc_now
from service_kit.component import Closing
from service_kit.main import run_main
from service_kit.service import Service
from upcycle.api.trajectory.v1.service_pb2_grpc import add_GradingServiceServicer_to_server


def build_app(settings: RewardGraderSettings) -> Service:
    """The whole service. Needs a running event loop; connects at start."""
    service = Service("reward_grader", settings)
    store = service.add(S3BlobStore(settings.s3))
    environments = EnvironmentClient(
        timeouts=EnvironmentTimeouts(grade_s=settings.grade_timeout_s), api_key=settings.access.sent
    )
    service.add(Closing("environments", environments.stop))
    judges = build_judges(settings)
    service.add(Closing("judges", judges.stop))
    extras = ExtraGraders(
        environment_weight=settings.environment_weight,
        graders=tuple(load_grader(one.path, one.weight, one.name) for one in settings.extra_graders),
        timeout_s=settings.extra_timeout_s,
    )
    grade = GradeTrajectory(
        environments,
        GraderTranscripts(store),
        extras,
        judges,
        gone_after_s=settings.gone_after_s,
        now=utc_now,
    )
    # Handlers and connection together must be done within the component's own bound.
    timings = BusTimings(drain_s=settings.drain_s * 0.6, close_s=settings.drain_s * 0.15)
    bus = EventBus(settings.bus, client_name="reward_grader", timings=timings)
    bus.include_router(trajectory_router(grade, bus, now=utc_now, slots=settings.slots))
    service.add(bus)
    servicer = GradingServicer(RecordedSessions(store), bus, now=utc_now)
    access = access_of(service, settings.access, settings.peers.registry)
    server = GrpcServer.of(settings, access)
    service.add(server.add(add_GradingServiceServicer_to_server, servicer, STATUS_OF))
    return service


def build_judges(settings: RewardGraderSettings) -> JudgeServers:
    """The models that scenarios may have asked, by their names."""
    named = [
        Judge(one.name, one.url, one.model, one.key.get_secret_value().strip()) for one in settings.judges
    ]
    if settings.judge_url:
        key = settings.judge_key.get_secret_value().strip()
        named.append(Judge("", settings.judge_url, settings.judge_model, key))
    limits = JudgeLimits(
        settings.judge_timeout_s,
        settings.judge_gone_after_s,
        settings.judge_max_tokens,
        # The rest of the slots is for records that ask no judge, or another one.
        at_once=max(1, settings.slots // 2),
        together=max(1, settings.slots * 3 // 4),
    )
    return JudgeServers(named, limits)


def main() -> None:
    """Entry point of `upcycle-reward-grader`."""
    run_main("reward_grader", RewardGraderSettings, build_app)


if __name__ == "__main__":
    main()
