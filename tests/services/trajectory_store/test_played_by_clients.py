"""Agents of others play in this process, and a real trajectory store keeps what they did."""

import asyncio
import json
import logging
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from tests.libs.upcycle.external.conftest import ENVIRONMENT, TASKS
from tests.services.trajectory_store.running_store import Store
from tests.support.model_servers import KEY, MODEL, Turn, openai_shaped, serving

import upcycle
from service_kit.ports import free_ports
from trajectory_body import body_messages
from upcycle import Taskset, create_agent
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.cli.main import run as upcycle_command
from upcycle.external.evaluating import ExternalEpisode, evaluate_tasks
from upcycle.external.naming import external_model
from upcycle.external.sending import PlayedEvaluation, send_to_found
from upcycle.harness import ToolOutcome
from upcycle.platform import PEERS
from upcycle.train.inputs import InputInvalid, input_to_wire

RUN = "here-0123456789ab"


def looks(results: list[str]) -> Turn:
    """Asks for the tea, then says how much there is."""
    return Turn(results[-1]) if results else Turn("Let me look.", ("stock", {"item": "tea"}))


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model of others, in the folder of a shop; no platform is found from there."""
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    for peer in PEERS:
        monkeypatch.delenv(f"UPCYCLE_PEERS_{peer.upper()}", raising=False)
    with serving(openai_shaped(looks)) as server:
        yield f"openai:{server.url}/v1#{MODEL}"


def found(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """A platform is found, of which only the trajectory store answers."""
    for peer in PEERS:
        monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)


async def kept(store: Store) -> dict[str, pb.GetTrajectoryResponse]:
    """What the store has of clients, by task."""
    wanted = pb.TrajectoryFilter(state=trajectory_pb2.LEDGER_STATE_CLIENT_GRADED)
    listed = await store.api.ListTrajectories(pb.ListTrajectoriesRequest(filter=wanted))
    ids = [one.episode.trajectory_id for one in listed.trajectories]
    read = [await store.api.GetTrajectory(pb.GetTrajectoryRequest(trajectory_id=one)) for one in ids]
    return {one.summary.episode.task_slug: one for one in read}


async def test_runs_of_this_process_name_their_trajectories_on_the_platform(
    store: Store, agent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found(monkeypatch, store.address)
    tasks = Taskset.from_file(tmp_path / "tasks.py")
    async with upcycle.eval(tasks) as context:
        await create_agent(agent).run(context)
    tea, milk = context.runs
    assert (tea.reward, milk.reward) == (1.0, 0.0)
    stored = await kept(store)
    assert {slug: one.summary.episode.trajectory_id for slug, one in stored.items()} == {
        "tea": tea.trace_id,
        "milk": milk.trace_id,
    }
    one = stored["tea"]
    assert (one.summary.reward, one.summary.success, one.body.answer) == (1.0, True, "3")
    assert (one.summary.episode.task_digest, one.summary.episode.model) == (tasks.tasks[0].digest, agent)
    assert input_to_wire(tea).trajectory_id == tea.trace_id
    assert not (tmp_path / ".upcycle").exists()
    assert (await store.ledger("")).requested == 0


async def test_the_conversation_is_stored_as_it_was_and_a_reward_that_cannot_be_is_named(
    store: Store, agent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found(monkeypatch, store.address)
    tasks, played = Taskset.from_file(tmp_path / "tasks.py"), list[ExternalEpisode]()
    await evaluate_tasks(tasks.tasks, external_model(agent), run_id=RUN, on_episode=played.append)
    tea, milk = sorted(played, key=lambda one: one.run.task_slug, reverse=True)
    odd = replace(milk, run=replace(milk.run, reward=1.5))
    half = deepcopy(milk)
    half.played.turns[0].outcomes[0] = ToolOutcome("half an emoji: \ud83d")
    missing = replace(milk, run=replace(milk.run, failure="timeout"), attempt=1)
    sent = await send_to_found(PlayedEvaluation(RUN, agent, tasks, 2, [half, tea, odd, missing]))
    assert sent is not None
    assert list(sent.ids) == [tea.run.episode_id]
    of_text, of_reward = sent.why_left.split("; ", 1)
    assert of_text.startswith("1 episode is not sent to the platform: milk: ")
    assert of_reward == (
        "1 episode is not sent to the platform: trajectories[0] ('milk', attempt 0): reward is 1.5, outside "
        "[0, 1]; rescale it, for example score / max_score"
    )
    (one,) = (await kept(store)).values()
    assert body_messages(one.body) == tea.row["messages"]
    assert json.loads(one.body.tools_json) == tea.row["tools"]


async def test_without_a_platform_they_stay_in_a_file(agent: str, tmp_path: Path) -> None:
    async with upcycle.eval(Taskset.from_file(tmp_path / "tasks.py")) as context:
        await create_agent(agent).run(context)
    run_id = context.runs[0].run_id
    path = tmp_path / ".upcycle" / "evaluations" / run_id / "trajectories.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((row["task"]["slug"], row["reward"]) for row in rows) == [("milk", 0.0), ("tea", 1.0)]
    assert {row["planned"]["num_episodes"] for row in rows} == {2}
    with pytest.raises(InputInvalid, match="has no trajectory in the store: no platform kept it"):
        input_to_wire(context.runs[0])


async def test_a_platform_that_does_not_answer_costs_no_result(
    agent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    found(monkeypatch, f"127.0.0.1:{port}")
    with caplog.at_level(logging.WARNING):
        async with upcycle.eval(Taskset.from_file(tmp_path / "tasks.py")) as context:
            await create_agent(agent).run(context)
    assert [run.reward for run in context.runs] == [1.0, 0.0]
    assert "2 episodes are not sent to the platform" in caplog.text
    assert len(list((tmp_path / ".upcycle" / "evaluations").glob("here-*/trajectories.jsonl"))) == 1


async def test_the_command_says_what_the_platform_keeps(
    store: Store, agent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, store.address)
    assert await asyncio.to_thread(upcycle_command, ["eval", "tasks.py", agent]) == 0
    printed = capsys.readouterr().out.splitlines()
    (line,) = [one for one in printed if one.startswith("the platform keeps 2 episodes as client_graded: ")]
    listed = line.partition(": upcycle ")[2].split()
    assert await asyncio.to_thread(upcycle_command, listed) == 0
    table = capsys.readouterr().out
    assert ("tea" in table, "milk" in table, "client_graded" in table, "v-1" in table) == (
        True,
        True,
        True,
        False,
    )
    for shown in (["show", "last"], ["export", *listed[2:], "--form", "trajectories"]):
        (trajectory,) = [
            one for one in table.split() if one.startswith("traj-") and one.endswith("g00000-e000-a0")
        ]
        asked = [trajectory if word == "last" else word for word in shown]
        assert await asyncio.to_thread(upcycle_command, ["trajectories", *asked]) == 0
    printed_of_one = capsys.readouterr().out
    assert ("v-1" in printed_of_one, printed_of_one.count('"versions": null')) == (False, 2)
    assert await asyncio.to_thread(upcycle_command, ["eval", "tasks.py", agent, "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done["sent"], done["not_sent"]) == (2, {})


async def test_an_episode_of_the_play_command_is_kept_too(
    store: Store,
    agent: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found(monkeypatch, store.address)
    (tmp_path / "say.jsonl").write_text(
        '{"tool_calls": [{"name": "stock", "arguments": {"item": "tea"}}]}\n"3"\n'
    )
    command = ["play", "tasks.py:tea", "--script", "say.jsonl", "--in-process", "--json"]
    assert await asyncio.to_thread(upcycle_command, command) == 0
    record = json.loads(capsys.readouterr().out)
    stored = await kept(store)
    assert [one.summary.episode.trajectory_id for one in stored.values()] == [record["kept"]]
    assert (stored["tea"].summary.reward, stored["tea"].summary.episode.model) == (1.0, "script")
    assert not (tmp_path / ".upcycle").exists()
    assert (await store.ledger("")).requested == 0
