"""Rewards of recorded sessions: gateway, reward grader and trajectory store together, on real servers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.engine_double import EngineDouble
from tests.services.model_gateway.test_recorded_sessions import ASK, MODEL, OWNER, fresh, other_key, rows
from tests.support.waiting import until

from identities.entities import recorded_episode_id, recorded_run_id, trajectory_id
from reward_grader.app import build_app as build_grader
from reward_grader.settings import RewardGraderSettings
from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.ports import free_ports
from trajectory_store.app import build_app as build_store
from trajectory_store.settings import TrajectoryStoreSettings
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import GradingServiceStub, TrajectoryServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteConflict, RemoteError, RemoteNotFound, RemoteRefused, connect, remote_errors

GRADE: dict[str, Any] = {"score": 0.75, "subscores": [{"name": "tests", "value": 0.75, "weight": 1.0}]}


@pytest.fixture
def ports() -> tuple[int, int]:
    grading, store = free_ports(2)
    return grading, store


@pytest.fixture
def peers(ports: tuple[int, int]) -> dict[str, str]:
    return {"grading": f"127.0.0.1:{ports[0]}"}


@pytest.fixture
async def grader(nats_url: str, s3_settings: S3Settings, ports: tuple[int, int]) -> AsyncIterator[Any]:
    """The reward grader, and a stub to it."""
    service = build_grader(
        RewardGraderSettings(grpc_port=ports[0], http_port=0, s3=s3_settings, bus=BusSettings(url=nats_url))
    )
    await service.start()
    channel = connect(f"127.0.0.1:{ports[0]}")
    yield GradingServiceStub(channel)
    await channel.close()
    await service.stop()


@pytest.fixture
async def store(
    nats_url: str, s3_settings: S3Settings, ports: tuple[int, int], tmp_path: Path
) -> AsyncIterator[Any]:
    """The trajectory store, and a stub to it."""
    service = build_store(
        TrajectoryStoreSettings(
            grpc_port=ports[1],
            http_port=0,
            s3=s3_settings,
            bus=BusSettings(url=nats_url),
            sql=SqlSettings(data_dir=tmp_path / "store"),
            peers=PeerSettings(registry="127.0.0.1:1", tasksets="127.0.0.1:1", training="127.0.0.1:1"),
        )
    )
    await service.start()
    channel = connect(f"127.0.0.1:{ports[1]}")
    yield TrajectoryServiceStub(channel)
    await channel.close()
    await service.stop()


async def talk(gateway: Gateway, session_id: str) -> None:
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    await client.chat.completions.create(model=MODEL, messages=ASK)


async def give(gateway: Gateway, session_id: str, reward: Any, key: str = KEY) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{gateway.url}/v1/sessions/{session_id}/reward"
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=reward) as reply:
        return reply.status, await reply.json()


async def summary(store: Any, session_id: str, state: int) -> trajectory_pb2.TrajectorySummary:
    """Of a session, once the store has it in this state."""
    wanted = trajectory_id(recorded_episode_id(session_id))

    async def found() -> Any:
        try:
            with remote_errors("get"):
                got = await store.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=wanted))
        except (RemoteError, Unavailable):
            return None
        return got.summary if got.summary.ledger.state == state else None

    summary: trajectory_pb2.TrajectorySummary = await until(
        found, f"{session_id} in state {state}", timeout_s=30
    )
    return summary


async def test_a_reward_makes_a_session_an_evaluated_trajectory(
    gateway: Gateway, served: EngineDouble, grader: Any, store: Any
) -> None:
    session_id = fresh("graded")
    await talk(gateway, session_id)
    status, said = await give(gateway, session_id, {**GRADE, "group": "monday", "split": "train"})
    assert (status, said["score"], said["success"]) == (200, 0.75, False)
    assert said["trajectory_id"] == trajectory_id(recorded_episode_id(session_id))
    known = await summary(store, session_id, trajectory_pb2.LEDGER_STATE_EVALUATED)
    assert (known.reward, known.graded, known.num_turns, known.num_sampled_tokens) == (0.75, True, 1, 4)
    assert [(node.name, node.value) for node in known.subscores] == [("tests", 0.75)]
    assert known.episode.group_id == said["group_id"]
    assert known.episode.split == common_pb2.SPLIT_TRAIN
    run = recorded_run_id(OWNER)
    listed = await store.ListTrajectories(
        pb.ListTrajectoriesRequest(filter=pb.TrajectoryFilter(group_id=said["group_id"]))
    )
    assert [one.episode.episode_id for one in listed.trajectories] == [recorded_episode_id(session_id)]
    ledger = await store.GetLedger(pb.GetLedgerRequest(run_id=run))
    assert ledger.requested == ledger.settled + ledger.in_flight
    assert ledger.conflicts == 0


async def test_equal_group_and_equal_first_prompt_are_one_group(
    gateway: Gateway, served: EngineDouble, grader: Any
) -> None:
    groups = []
    for name, question in (("a", "why?"), ("b", "why?"), ("c", "when?")):
        session_id = fresh(name)
        client = gateway.client(default_headers={"X-Session-ID": session_id})
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}])
        groups.append((await give(gateway, session_id, {"score": 1, "group": "g"}))[1]["group_id"])
    assert groups[0] == groups[1] != groups[2]


async def test_the_same_reward_twice_is_one_and_another_is_refused(
    gateway: Gateway, served: EngineDouble, grader: Any, store: Any
) -> None:
    session_id = fresh("twice")
    await talk(gateway, session_id)
    first, again = await give(gateway, session_id, GRADE), await give(gateway, session_id, GRADE)
    assert first == again
    for other in (
        {**GRADE, "score": 0.5},
        {"score": 0.75},
        {**GRADE, "group": "g"},
        {**GRADE, "split": "train"},
    ):
        status, said = await give(gateway, session_id, other)
        assert (status, said["error"]["code"]) == (409, "session_graded")
        assert "has the reward 0.75" in said["error"]["message"]
    known = await summary(store, session_id, trajectory_pb2.LEDGER_STATE_EVALUATED)
    assert (known.reward, known.episode.split) == (0.75, common_pb2.SPLIT_UNASSIGNED)


async def test_two_different_rewards_at_once_leave_one(
    gateway: Gateway, served: EngineDouble, grader: Any, store: Any
) -> None:
    session_id = fresh("race")
    await talk(gateway, session_id)
    scores = [step / 10 for step in range(6)]
    given = await asyncio.gather(*(give(gateway, session_id, {"score": score}) for score in scores))
    assert sorted(status for status, _ in given) == [200, 409, 409, 409, 409, 409]
    (won,) = (said["score"] for status, said in given if status == 200)
    known = await summary(store, session_id, trajectory_pb2.LEDGER_STATE_EVALUATED)
    assert known.reward == won


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"score": 1.5}, "reward is 1.5, outside [0, 1]"),
        ({"score": -0.1}, "outside [0, 1]"),
        ({"score": "good"}, "not a number"),
        ({"score": True}, "score is true, expected a number from 0 to 1; `success` takes true and false"),
        ({"score": 1, "subscores": [{"name": "a", "value": False}]}, r"subscores[0].value is false"),
        ({}, "no field 'score'"),
        ([], "JSON list"),
        ({"score": 1, "reward": 1}, "unknown field 'reward'"),
        ({"score": 1, "split": "test"}, "split is 'test', expected one of train"),
        ({"score": 1, "group": "a/b"}, "group is 'a/b'"),
        ({"score": 1, "subscores": [{"name": "a", "value": 2}]}, "outside [0, 1]"),
        ({"score": 1, "subscores": [{"name": "a" * 40_000, "value": 1}]}, "at most 32768"),
    ],
)
async def test_a_bad_reward_is_refused_by_name_and_changes_nothing(
    gateway: Gateway, served: EngineDouble, grader: Any, reward: Any, words: str
) -> None:
    session_id = fresh("bad")
    await talk(gateway, session_id)
    status, said = await give(gateway, session_id, reward)
    assert (status, words in said["error"]["message"]) == (400, True), said
    assert (await rows(gateway, "select state from recorded_session")) == [{"state": "open"}]
    await talk(gateway, session_id)  # it goes on


async def test_a_reward_for_no_session_or_for_one_of_another_key_is_not_found(
    gateway: Gateway, served: EngineDouble, grader: Any
) -> None:
    status, said = await give(gateway, fresh("never"), GRADE)
    assert (status, said["error"]["code"]) == (404, "session_not_found")
    session_id = fresh("theirs")
    await talk(gateway, session_id)
    status, said = await give(gateway, session_id, GRADE, await other_key(gateway))
    assert (status, said["error"]["code"]) == (404, "session_not_found")
    assert (await give(gateway, session_id, GRADE, "up_nosuchkey_0123456789abcdef"))[0] == 401
    assert (await rows(gateway, "select state from recorded_session")) == [{"state": "open"}]


async def test_a_session_takes_no_call_after_its_reward(
    gateway: Gateway, served: EngineDouble, grader: Any
) -> None:
    session_id = fresh("over")
    await talk(gateway, session_id)
    await give(gateway, session_id, GRADE)
    with pytest.raises(openai.ConflictError, match="is closed"):
        await talk(gateway, session_id)


@pytest.mark.study
async def test_while_the_grader_is_away_a_reward_waits_with_its_client(
    gateway: Gateway, served: EngineDouble
) -> None:
    session_id = fresh("away")
    await talk(gateway, session_id)
    status, said = await give(gateway, session_id, GRADE)
    assert (status, said["error"]["code"]) == (503, "grading_unavailable")


async def test_the_grader_itself_refuses_what_it_must_not_grade(
    gateway: Gateway, served: EngineDouble, grader: Any
) -> None:
    session_id = fresh("rpc")
    await talk(gateway, session_id)
    assert (await give(gateway, session_id, {"score": 0.5}))[0] == 200

    async def grade(**fields: Any) -> Any:
        asked: dict[str, Any] = {"session_id": session_id, "key_id": OWNER, "score": 0.5}
        with remote_errors("grade"):
            return await grader.GradeSession(pb.GradeSessionRequest(**(asked | fields)))

    assert (await grade()).score == 0.5
    with pytest.raises(RemoteNotFound, match="UNKNOWN_SESSION"):
        await grade(key_id="other0000")
    with pytest.raises(RemoteConflict, match="SESSION_GRADED"):
        await grade(score=0.25)
    for wrong, words in (
        ({"score": 1.01}, "score is 1.01"),
        ({"score": float("nan")}, "score is nan"),
        ({"score": None}, "score is missing"),
        ({"group": "-"}, "group is '-'"),
        ({"session_id": ""}, "session_id and key_id must be given"),
    ):
        with pytest.raises(RemoteRefused, match=words):
            await grade(**wrong)


@pytest.mark.parametrize("changes", [{"session_idle_s": 1.0, "session_retention_days": 3e-5}])
async def test_a_session_without_a_reward_is_settled_as_ungraded_and_stays_so(
    gateway: Gateway, served: EngineDouble, grader: Any, store: Any, changes: dict[str, Any]
) -> None:
    session_id = fresh("ungraded")
    await talk(gateway, session_id)
    known = await summary(store, session_id, trajectory_pb2.LEDGER_STATE_EXCLUDED)
    assert (known.ledger.reason, known.num_turns) == ("ungraded", 1)
    status, said = await give(gateway, session_id, GRADE)
    assert (status, "no reward came within its retention" in said["error"]["message"]) == (409, True)


@pytest.mark.parametrize("changes", [{"session_idle_s": 600.0, "session_retention_days": 1.0}])
async def test_a_late_reward_of_a_closed_session_counts_and_retention_leaves_it(
    gateway: Gateway, served: EngineDouble, grader: Any, store: Any, changes: dict[str, Any]
) -> None:
    session_id = fresh("late")
    await talk(gateway, session_id)
    assert (await give(gateway, session_id, GRADE))[0] == 200
    assert await rows(gateway, "select state from recorded_session") == [{"state": "graded"}]
    # As a gateway leaves it that ends between the grade and its note.
    changed = "state = 'recorded', last_call_at = '2020-01-01 00:00:00'"
    await rows(gateway, f"update recorded_session set {changed} returning session_id")  # noqa: S608

    async def is_expired() -> bool:
        return await rows(gateway, "select state from recorded_session") == [{"state": "expired"}]

    await until(is_expired, "the sweep", timeout_s=30)
    known = await summary(store, session_id, trajectory_pb2.LEDGER_STATE_EVALUATED)
    assert known.reward == 0.75
    ledger = await store.GetLedger(pb.GetLedgerRequest(run_id=recorded_run_id(OWNER)))
    assert ledger.conflicts == 0


@pytest.mark.parametrize("changes", [{"session_max_calls": 1}])
async def test_a_session_beyond_its_bounds_is_evaluated_and_says_so(
    gateway: Gateway, served: EngineDouble, grader: Any, store: Any, changes: dict[str, Any]
) -> None:
    session_id = fresh("beyond")
    await talk(gateway, session_id)
    await talk(gateway, session_id)
    for _ in range(2):  # also where it is only asked for again
        status, said = await give(gateway, session_id, {**GRADE, "group": "nightly", "split": "train"})
        assert (status, said["score"], said["unrecorded_calls"]) == (200, 0.75, 1)
    found = await summary(store, session_id, trajectory_pb2.LEDGER_STATE_EVALUATED)
    assert (found.reward, found.stop_reason) == (0.75, trajectory_pb2.STOP_REASON_RECORDING_LIMIT)
