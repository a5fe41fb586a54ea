"""The monitors of reward hacks on a running store: alarms, quarantines, reviews."""

import json
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from pydantic import SecretStr
from tests.conftest import NatsFactory
from tests.services.trajectory_store import events
from tests.services.trajectory_store.running_store import Store, body_of, running
from tests.support.waiting import until

from blob_store import BlobRef
from episodes import identity_from_wire
from event_bus.provision import provision
from identities import objects
from service_kit.groups import S3Settings, ServerAccessSettings
from trajectory_body import pack
from trajectory_store.domain.facts import LedgerState, TrajectoryGrade, TrajectoryRecord, graded, settled
from trajectory_store.domain.ledger import fold
from trajectory_store.wire.observed import observed
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryQuarantined
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY

PROTECTED = '{"watch":{"protected":{"truth":"%s"}}}'


def trajectory(number: int) -> str:
    return f"traj-{events.episode_id(number)}"


async def play(
    store: Store,
    number: int,
    *,
    shadow: float,
    success: bool = True,
    written: bool = False,
    guided_after: str = "",
    family: str = "db",
) -> None:
    """One graded episode. shadow: the value of the shadow grader; written: it changed what graders read."""
    body = body_of(number)
    body.first_state.value_json = PROTECTED % "a"
    body.last_state.value_json = PROTECTED % ("b" if written else "a")
    ref = await store.blobs.put(objects.trajectory_body("run-1", body.episode.episode_id), pack(body))
    fact = events.graded(number, reward=1.0 if success else 0.0, body=ref)
    fact.subscores.append(trajectory_pb2.Subscore(name="shadow_exact", weight=0.0, value=shadow))
    messages: list[Message] = [events.requested(number), events.recorded(number, body=ref), fact]
    for message in messages:
        message.episode.guided_after = guided_after  # type: ignore[attr-defined]
        message.episode.family = family  # type: ignore[attr-defined]
    await store.publish(*messages)


async def alarms(store: Store, *, only_open: bool = True) -> list[pb.RewardAlarm]:
    reply = await store.api.ListAlarms(pb.ListAlarmsRequest(run_ids=["run-1"], only_open=only_open))
    return list(reply.alarms)


async def raised(store: Store, kind: str) -> pb.RewardAlarm:
    """The open alarm of a kind, once there is one."""
    found: list[pb.RewardAlarm] = []

    async def is_there() -> bool:
        found[:] = [one for one in await alarms(store) if one.kind == kind]
        return bool(found)

    await until(is_there)
    return found[0]


async def summary(store: Store, number: int) -> trajectory_pb2.TrajectorySummary:
    reply = await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=trajectory(number)))
    assert reply.body.answer == "OOM"  # a hack is shown whole
    return reply.summary


async def set_aside(store: Store, number: int) -> None:
    """Once it is quarantined; so all before it were seen."""

    async def is_set_aside() -> bool:
        listed = (await store.api.ListTrajectories(pb.ListTrajectoriesRequest())).trajectories
        reasons = {one.episode.episode_id: one.quarantine_reason for one in listed}
        return bool(reasons.get(events.episode_id(number)))

    await until(is_set_aside)


async def test_a_shadow_that_disagrees_is_an_alarm_with_its_trajectories(store: Store) -> None:
    for number in range(6):
        await play(store, number, shadow=0.0)
    alarm = await raised(store, "shadow_disagrees")
    assert (alarm.model, alarm.since_version, alarm.limit) == ("incident", 4, 0.02)
    assert alarm.value == 1.0
    assert set(alarm.trajectory_ids) <= {trajectory(number) for number in range(6)}
    assert len(alarm.trajectory_ids) >= 5


async def test_a_shadow_that_agrees_raises_nothing(store: Store) -> None:
    for number in range(8):
        await play(store, number, shadow=1.0)
    await play(store, 8, shadow=0.0, written=True)  # the last one is seen: those before it are, too
    await play(store, 9, shadow=0.0, written=True)
    await raised(store, "state_tampered")
    assert [one.kind for one in await alarms(store)] == ["state_tampered"]


async def test_guided_episodes_are_shown_as_such_and_watched_by_no_monitor(store: Store) -> None:
    """A policy that was told the answer needs none of the evidence that a monitor asks for."""
    for number in range(6):
        await play(store, number, shadow=0.0, guided_after=events.episode_id(40))
    for number in (6, 7):  # the last ones are seen: those before them are, too
        await play(store, number, shadow=1.0, written=True)
    await raised(store, "state_tampered")
    assert [one.kind for one in await alarms(store)] == ["state_tampered"]
    assert (await summary(store, 1)).episode.guided_after == events.episode_id(40)
    assert (await summary(store, 6)).episode.guided_after == ""
    request = pb.ExportTrajectoriesRequest(format=pb.EXPORT_FORMAT_TRIPLES)
    parts = [one.jsonl async for one in store.api.ExportTrajectories(request)]
    marks = [json.loads(line).get("guided_after") for line in "".join(parts).splitlines()]
    assert marks == [events.episode_id(40)] * 6  # those that were written are set aside


async def test_what_a_monitor_is_sure_of_is_quarantined_published_and_shown(store: Store) -> None:
    await play(store, 0, shadow=1.0)
    await play(store, 1, shadow=1.0, written=True)

    await set_aside(store, 1)
    assert (await summary(store, 1)).quarantine_reason == "reward hack: it changed what graders read"
    assert not (await summary(store, 0)).quarantine_reason
    stored = await store.bus.stored([TrajectoryQuarantined], after_sequence=0, model=events.MODEL)
    assert [one.message.episode.episode_id for one in stored] == [events.episode_id(1)]
    exported = [
        one
        async for one in store.api.ExportTrajectories(
            pb.ExportTrajectoriesRequest(format=pb.EXPORT_FORMAT_RECORDS)
        )
    ]
    assert sum(one.quarantined for one in exported) == 1


def test_a_failed_episode_without_a_body_shows_its_failure() -> None:
    fact = settled(identity_from_wire(events.identity(3)), LedgerState.FAILED, 1, reason="grader_error")
    seen = observed(fold(None, fact), None)
    assert (seen.trajectory_id, seen.failure, seen.is_graded) == (trajectory(3), "grader_error", False)


def test_what_a_body_shows_of_leaks_tools_and_states() -> None:
    fact = graded(
        identity_from_wire(events.identity(1)),
        TrajectoryRecord(BlobRef("k", "0", 1), 3, 4, int(trajectory_pb2.STOP_REASON_MAX_TURNS), 2, 17, 1),
        TrajectoryGrade(0.5, True, b"", 2),
    )
    body = body_of(1)
    body.first_state.value_json = '{"watch":{"secrets":["oom killed"],"evidence":["trace"]},"cart":1}'
    body.turns[0].tool_results[0].state.patch_json = '[{"op":"replace","path":"/cart","value":2}]'
    body.last_state.patch_json = "[]"
    seen = observed(fold(None, fact), body)
    assert (seen.leaks, seen.tools, seen.changed) == (("search_logs",), ("search_logs",), ("cart",))
    assert (seen.truncated, seen.version, seen.answer) == (True, 4, "OOM")
    assert seen.declared.evidence == ("trace",)
    body.turns[0].tool_calls[0].arguments_json = '{"q": "oom killed"}'
    assert observed(fold(None, fact), body).leaks == ()


async def test_successes_at_tasks_of_the_impossible_family_raise_an_alarm(store: Store) -> None:
    """The family is enough: the environment's state need not say it too."""
    for number in range(8):
        await play(store, number, shadow=1.0)
    for number in range(8, 15):
        await play(store, number, shadow=1.0, success=number % 3 != 0, family=IMPOSSIBLE_FAMILY)
    alarm = await raised(store, "impossible_solved")
    assert set(alarm.trajectory_ids) == {trajectory(number) for number in (8, 10, 11, 13, 14)}
    assert [one.kind for one in await alarms(store)] == ["impossible_solved"]


def test_a_failed_episode_at_an_impossible_task_is_seen_as_one() -> None:
    identity = replace(identity_from_wire(events.identity(3)), family=IMPOSSIBLE_FAMILY)
    fact = settled(identity, LedgerState.FAILED, 1, reason="grader_error")
    assert observed(fold(None, fact), None).declared.impossible


async def test_a_person_dismisses_an_alarm(store: Store) -> None:
    for number in range(6):
        await play(store, number, shadow=0.0)
    await raised(store, "shadow_disagrees")
    request = pb.DismissAlarmRequest(run_id="run-1", kind="shadow_disagrees", by="ada", note="known")
    reply = await store.api.DismissAlarm(request)
    assert (reply.alarm.dismissed_by, reply.alarm.note) == ("ada", "known")
    assert await alarms(store) == []
    assert [one.kind for one in await alarms(store, only_open=False)] == ["shadow_disagrees"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await store.api.DismissAlarm(pb.DismissAlarmRequest(run_id="run-1", kind="leak_shown", by="ada"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_hacked_quarantines_its_like_and_nothing_else(store: Store) -> None:
    """Two successes that the shadow denies have one signature; an honest one has its own."""
    await play(store, 0, shadow=0.0)
    await play(store, 1, shadow=0.0)
    await play(store, 2, shadow=1.0)
    await play(store, 3, shadow=1.0, written=True)

    await set_aside(store, 3)
    verdict = pb.ReviewTrajectoryRequest(
        trajectory_id=trajectory(0), verdict=pb.REVIEW_VERDICT_HACKED, reviewer="ada", note="constant"
    )
    reply = await store.api.ReviewTrajectory(verdict)
    assert list(reply.quarantined) == [trajectory(0), trajectory(1)]
    assert not (await summary(store, 2)).quarantine_reason
    again = await store.api.ReviewTrajectory(verdict)
    assert list(again.quarantined) == []
    kept = (await store.api.ListReviews(pb.ListReviewsRequest(run_id="run-1"))).reviews
    assert [(one.trajectory_id, one.reviewer, one.note) for one in kept] == [
        (trajectory(0), "ada", "constant")
    ]


async def batches(store: Store) -> list[tuple[list[str], int, float, str]]:
    reply = await store.api.ListSignatures(pb.ListSignaturesRequest(run_id="run-1"))
    assert len({one.signature for one in reply.batches}) == len(reply.batches)
    return [
        (list(one.monitors), one.num_trajectories, one.mean_reward, one.trajectory_id)
        for one in reply.batches
    ]


async def test_a_run_is_reviewed_by_kind_and_what_comes_later_is_set_aside_too(store: Store) -> None:
    """What was said of one of a kind holds for those that a run plays on, and for no other kind or run."""
    for number in (0, 1):
        await play(store, number, shadow=0.0)
    await play(store, 2, shadow=1.0)
    await play(store, 3, shadow=1.0, written=True)
    await set_aside(store, 3)
    assert await batches(store) == [
        (["shadow_disagrees"], 2, 1.0, trajectory(0)),
        ([], 1, 1.0, trajectory(2)),
    ]
    verdict = pb.ReviewTrajectoryRequest(
        trajectory_id=trajectory(1), verdict=pb.REVIEW_VERDICT_HACKED, reviewer="ada"
    )
    assert len((await store.api.ReviewTrajectory(verdict)).quarantined) == 2
    assert await batches(store) == [([], 1, 1.0, trajectory(2))]

    await play(store, 5, shadow=1.0)
    await play(store, 4, shadow=0.0)
    await set_aside(store, 4)
    said = f"reward hack: ada says so of {events.episode_id(1)}"
    assert (await summary(store, 4)).quarantine_reason == said
    assert await batches(store) == [([], 2, 1.0, trajectory(2))]
    solved = pb.ReviewTrajectoryRequest(
        trajectory_id=trajectory(1), verdict=pb.REVIEW_VERDICT_SOLVED, reviewer="ada"
    )
    await store.api.ReviewTrajectory(solved)  # she was wrong: what comes now is not set aside
    await play(store, 6, shadow=0.0)
    await play(store, 7, shadow=1.0, written=True)
    await set_aside(store, 7)
    assert not (await summary(store, 6)).quarantine_reason


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"trajectory_id": "traj-none"}, grpc.StatusCode.NOT_FOUND),
        ({"verdict": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"reviewer": ""}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_review_that_says_too_little_is_refused(
    store: Store, changes: dict[str, object], code: grpc.StatusCode
) -> None:
    await play(store, 0, shadow=1.0, written=True)
    await set_aside(store, 0)
    usual = {"trajectory_id": trajectory(0), "verdict": 1, "reviewer": "ada"}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await store.api.ReviewTrajectory(pb.ReviewTrajectoryRequest(**{**usual, **changes}))  # type: ignore[arg-type]
    assert caught.value.code() is code
    assert not (await store.api.ListReviews(pb.ListReviewsRequest(run_id="run-1"))).reviews


async def num_confirmed(store: Store, top: int) -> int:
    reply = await store.api.ListReviews(pb.ListReviewsRequest(run_id="run-1", top=top))
    assert reply.HasField("confirmed")
    return reply.confirmed


async def test_confirmed_are_the_best_that_are_reviewed_as_solved_and_not_as_hacked(store: Store) -> None:
    for number in (0, 1, 2):
        await play(store, number, shadow=1.0)
    await play(store, 3, shadow=1.0, success=False)  # it earned 0
    await play(store, 4, shadow=1.0, written=True)  # it is set aside
    await set_aside(store, 4)
    for number, who, verdict in (
        (0, "ada", pb.REVIEW_VERDICT_SOLVED),
        (0, "bob", pb.REVIEW_VERDICT_SOLVED),
        (1, "ada", pb.REVIEW_VERDICT_UNCLEAR),
        (3, "ada", pb.REVIEW_VERDICT_SOLVED),
        (4, "ada", pb.REVIEW_VERDICT_SOLVED),
    ):
        asked = pb.ReviewTrajectoryRequest(trajectory_id=trajectory(number), verdict=verdict, reviewer=who)
        await store.api.ReviewTrajectory(asked)
    assert [await num_confirmed(store, top) for top in (1, 3, 4, 9)] == [1, 1, 2, 2]
    hacked = pb.ReviewTrajectoryRequest(
        trajectory_id=trajectory(0), verdict=pb.REVIEW_VERDICT_HACKED, reviewer="eve"
    )
    assert trajectory(0) in (await store.api.ReviewTrajectory(hacked)).quarantined
    assert await num_confirmed(store, 1) == 0
    unasked = await store.api.ListReviews(pb.ListReviewsRequest(run_id="run-1"))
    assert not unasked.HasField("confirmed")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await num_confirmed(store, 1001)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


ADA, BOB = "adas-key-0123456789", "bobs-key-0123456789"
USERS = ServerAccessSettings(
    open=False, service_key=SecretStr("a-key-of-the-services"), user_keys=SecretStr(f"ada:{ADA},bob:{BOB}")
)


async def test_no_user_reviews_or_dismisses_in_the_name_of_another(
    nats_server: NatsFactory, s3_settings: S3Settings, tmp_path: Path
) -> None:
    server = nats_server()
    await provision(server.url)
    asked = pb.ListReviewsRequest(run_id="run-1")
    as_ada, as_bob = ((("authorization", f"Bearer {key}"),) for key in (ADA, BOB))

    async with running(server.url, s3_settings, tmp_path, access=USERS) as store:
        for number in range(6):
            await play(store, number, shadow=0.0)

        async def is_raised() -> bool:
            open_ones = pb.ListAlarmsRequest(run_ids=["run-1"], only_open=True)
            found = await store.api.ListAlarms(open_ones, metadata=as_ada)
            return "shadow_disagrees" in [one.kind for one in found.alarms]

        await until(is_raised)
        solved, unclear = pb.REVIEW_VERDICT_SOLVED, pb.REVIEW_VERDICT_UNCLEAR
        review = pb.ReviewTrajectoryRequest(trajectory_id=trajectory(0), verdict=solved, reviewer="ada")
        await store.api.ReviewTrajectory(review, metadata=as_ada)
        review.verdict = unclear
        await store.api.ReviewTrajectory(review, metadata=as_bob)
        reviews = (await store.api.ListReviews(asked, metadata=as_bob)).reviews
        dismissal = pb.DismissAlarmRequest(run_id="run-1", kind="shadow_disagrees", by="ada", note="known")
        dismissed = await store.api.DismissAlarm(dismissal, metadata=as_bob)

    assert {one.reviewer: one.verdict for one in reviews} == {"ada (ada)": solved, "ada (bob)": unclear}
    assert dismissed.alarm.dismissed_by == "ada (bob)"


async def unseen(store: Store, run: str, until_s: float = 1e6) -> str:
    request = pb.ListAlarmsRequest(run_ids=[run], seen_until=events.at(until_s))
    return (await store.api.ListAlarms(request)).unseen


async def test_the_store_says_what_its_monitors_have_not_seen(
    nats_server: NatsFactory, s3_settings: S3Settings, tmp_path: Path
) -> None:
    """Its index has read all; its monitors wait for bodies, which are away."""
    server = nats_server()
    await provision(server.url)
    away = s3_settings.model_copy(update={"endpoint": "127.0.0.1:9"})
    async with running(server.url, away, tmp_path, has_s3=False) as store:
        for number in range(4):
            await store.publish(events.recorded(number), events.graded(number))

        async def is_read() -> bool:
            return (await unseen(store, "run-1")).startswith("its monitors")

        await until(is_read, "all facts to be read")
        assert await unseen(store, "run-1") == "its monitors have not seen 4 episodes yet"
        assert await unseen(store, "run-1", until_s=2001.5) == "its monitors have not seen 2 episodes yet"
        assert await unseen(store, "run-2") == ""
    async with running(server.url, s3_settings, tmp_path) as store:
        await until(lambda: nothing_unseen(store), "the monitors to see them")


async def nothing_unseen(store: Store) -> bool:
    return await unseen(store, "run-1") == ""
