"""The filters of `upcycle trajectories list|export` against the running store."""

import json
import os
from pathlib import Path
from typing import Final

import grpc
import pytest
from google.protobuf.message import Message
from sqlalchemy import text
from tests.services.deliveries import delivered
from tests.services.released_tables import migrate_to, revision_of
from tests.services.trajectory_store import events
from tests.services.trajectory_store.running_store import Store
from tests.support.command_line import CommandLine
from tests.support.waiting import until

from sql_store import Database, migrate
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.domain.facts import EpisodeFact
from trajectory_store.domain.queries import TrajectoryFilter
from trajectory_store.handlers import FACTS
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2


@pytest.fixture
def upcycle(store: Store, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys, {"trajectories": store.address})


async def stored(store: Store) -> None:
    """0 to 3 with rewards 0, 0.25, 0.5, 0.75 and versions 3 to 4; the policy of 0 failed; 3 is of family web
    and of versions 5 to 7. 4 is recorded and failed with engine_error."""
    for number in range(5):
        ref = await store.keep_body(number)
        recorded, graded = (
            events.recorded(number, body=ref),
            events.graded(number, body=ref, reward=number / 4),
        )
        if number == 3:
            recorded.episode.family = graded.episode.family = "web"
            for span in (recorded.sampled_by, graded.sampled_by):
                span.oldest, span.newest = 5, 7
        if number == 0:
            graded.failure.CopyFrom(trajectory_pb2.PolicyFailure(kind="answer_error"))
        last: Message = events.failed(4, "engine_error") if number == 4 else graded
        await store.publish(recorded, last)

    async def all_are_there() -> bool:
        states = (await store.ledger()).by_state
        return (states.get("graded"), states.get("failed(engine_error)")) == (4, 1)

    await until(all_are_there)


CHOSEN: Final[tuple[tuple[tuple[str, ...], list[int]], ...]] = (
    ((), [0, 1, 2, 3, 4]),
    (("--task", "task-0"), [0, 3]),
    (("--family", "web"), [3]),
    (("--min-reward", "0.25", "--max-reward", "0.5"), [1, 2]),
    (("--max-reward", "0"), [0]),
    (("--failure", "answer_error"), [0]),
    (("--failure", "engine_error"), [4]),
    (("--version", "v6"), [3]),
    (("--version", "4"), [0, 1, 2, 4]),
    (("--version", "8"), []),
    (("--state", "failed"), [4]),
    (("--state", "graded", "--task", "task-1"), [1]),
)
WRONG = (
    (("--min-reward", "much"), "much"),
    (("--min-reward", "nan"), "--min-reward is nan"),
    (("--min-reward", "1", "--max-reward", "0"), "--min-reward 1 is above --max-reward 0"),
    (("--state", "grated"), "grated"),
    (("--version", "newest"), "--version 'newest' is no version"),
    (("--limit", "0"), "--limit is 0"),
    (("--familly", "web"), "--familly"),
)


async def test_filters_choose_and_wrong_ones_are_refused_by_name(store: Store, upcycle: CommandLine) -> None:
    await stored(store)
    for flags, numbers in CHOSEN:
        listed = await upcycle("trajectories", "list", "--json", *flags)
        names = [json.loads(line)["episode_id"] for line in listed.out.splitlines()]
        assert sorted(names) == [events.episode_id(number) for number in numbers], flags
        exported = await upcycle("trajectories", "export", "--form", "records", *flags)
        assert len(exported.out.splitlines()) == len(numbers), flags
        assert exported.status == 0
    assert "no trajectory is like that" in (await upcycle("trajectories", "list", "--family", "x")).err
    for flags, said in WRONG:
        refused = await upcycle("trajectories", "list", *flags)
        assert refused.status == 2, flags
        assert said in refused.out + refused.err


async def test_sessions_are_listed_and_exported_by_their_labels(store: Store, upcycle: CommandLine) -> None:
    labels: tuple[tuple[str, ...], ...] = (("env:prod", "flow:refund"), ("flow:refund",), ())
    run, ids = "sessions-key00001", []
    for number, given in enumerate(labels):
        graded = events.graded(number, run=run, body=await store.keep_body(number, run))
        graded.episode.labels.extend(given)
        ids.append(graded.episode.episode_id)
        await store.publish(graded)

    async def all_are_there() -> bool:
        return (await store.ledger(run)).by_state.get("graded") == len(labels)

    await until(all_are_there)
    for flags, numbers in (
        (("--label", "flow:refund"), [0, 1]),
        (("--label", "flow:refund", "--label", "env:prod"), [0]),
        (("--label", "flow:sale"), []),
        ((), [0, 1, 2]),
    ):
        listed = [
            json.loads(line)
            for line in (await upcycle("trajectories", "list", "--json", *flags)).out.splitlines()
        ]
        found = {one["episode_id"]: tuple(one["labels"]) for one in listed}
        assert found == {ids[number]: labels[number] for number in numbers}
        for form in ("triples", "records", "trajectories"):
            exported = await upcycle("trajectories", "export", "--form", form, *flags)
            lines = map(json.loads, exported.out.splitlines())
            kept = [one["summary"]["episode"] if form == "records" else one for one in lines]
            assert sorted(tuple(one.get("labels", ())) for one in kept) == sorted(
                labels[number] for number in numbers
            )
    shown = (await upcycle("trajectories", "list", "--label", "env:prod")).out
    assert "env:prod flow:refund" in shown
    assert "labels env:prod flow:refund" in (await upcycle("trajectories", "show", ids[0])).out
    refused = await upcycle("trajectories", "list", "--label", "flow=refund")
    assert (refused.status, "--label: 'flow=refund' is no label: write name:value" in refused.err) == (
        2,
        True,
    )


async def test_the_store_refuses_a_filter_with_what_is_no_label(store: Store) -> None:
    wanted = pb.TrajectoryFilter(labels=["flow:%"])
    with pytest.raises(grpc.aio.AioRpcError, match=r"filter\.labels: label flow is '%'"):
        await store.api.ListTrajectories(pb.ListTrajectoriesRequest(filter=wanted))


def facts(*messages: Message) -> list[EpisodeFact]:
    return [fact for message in messages for fact in FACTS.handle(delivered(message, events.START))]


async def test_rows_from_before_there_were_kinds_get_theirs_when_they_change(tmp_path: Path) -> None:
    """A store of 0.3.0 is upgraded: its rows are there, without a kind until a fact about them comes."""
    database = Database(f"sqlite:///{tmp_path}/old.sqlite")
    await database.start()
    await migrate_to(database, "trajectory_store", revision_of("0.3.0", "trajectory_store"))
    await migrate(database, "trajectory_store")
    index, wanted = SqlIndex(database), TrajectoryFilter(failure_kind="answer_error")
    graded = events.graded(0, reward=0.0)
    graded.failure.CopyFrom(trajectory_pb2.PolicyFailure(kind="answer_error"))
    await index.project(facts(events.recorded(0), graded))
    await database.run(lambda sql: sql.execute(text("UPDATE episodes SET failure_kind = ''")).rowcount)
    assert await index.page(wanted, None, 9) == []
    await index.project(facts(events.settled([0], "trained", step=1)))
    (found,) = await index.page(wanted, None, 9)
    assert found.identity.episode_id == events.episode_id(0)
    await database.stop()


async def test_an_export_into_a_file_replaces_it_whole(
    store: Store, upcycle: CommandLine, tmp_path: Path
) -> None:
    await stored(store)
    shown, file = await upcycle("trajectories", "export", "--version", "4"), tmp_path / "out.jsonl"
    file.write_text("what was there before\n")
    refused = await upcycle(
        "trajectories", "export", "--version", "4", "-o", str(tmp_path / "no" / "x.jsonl")
    )
    assert (refused.status, f"there is no folder {tmp_path / 'no'}" in refused.err) == (2, True)
    done = await upcycle("trajectories", "export", "--version", "4", "-o", str(file))
    assert (done.status, done.out) == (0, "")
    assert sorted(file.read_text().splitlines()) == sorted(shown.out.splitlines())
    assert [name for name in os.listdir(tmp_path) if name.endswith(".jsonl")] == ["out.jsonl"]


async def test_an_export_in_the_form_of_a_trajectories_file(store: Store, upcycle: CommandLine) -> None:
    await stored(store)
    done = await upcycle("trajectories", "export", "--form", "trajectories", "--version", "4")
    lines = {line["trajectory_id"]: line for line in map(json.loads, done.out.splitlines())}
    assert (done.status, len(lines)) == (0, 4)
    graded = [line for line in lines.values() if line["reward"] == 0.5]
    assert [line["format"] for line in graded] == ["upcycle-trajectory/1"]
    assert graded[0]["versions"] == {"oldest": 3, "newest": 4}
    assert graded[0]["messages"][0]["role"] == "user"
    assert sum(line["reward"] is None for line in lines.values()) == 1
