"""Where the environments of an evaluation run that is played here: this process, forks, served ones."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.libs.upcycle.test_served_sessions import served
from tests.support.model_servers import KEY, MODEL, Turn, openai_shaped, serving

import upcycle
from service_kit.ports import free_ports
from upcycle import Runtime, Taskset, create_agent
from upcycle.cli.main import run as upcycle_command
from upcycle.environment.channel import ChannelClosed
from upcycle.errors import UpcycleError
from upcycle.external.keys import KEY_VARIABLES
from upcycle.platform import Addresses
from upcycle.playing.in_process import play_tasks
from upcycle.results import Run
from upcycle.runtimes import RuntimeRefused
from upcycle.task_rows import Task

OFFICE = """
import asyncio
import os
from upcycle import Environment

env = Environment("office")
at_work = []


@env.tool()
def process() -> str:
    return f"{os.getpid()} {os.environ.get('OFFICE_IS', 'local')}"


@env.scenario("ask")
async def ask(name: str):
    at_work.append(name)
    await asyncio.sleep(0.01)
    answer = yield f"Which process, {name}?"
    alone = at_work == [name]
    at_work.remove(name)
    yield 1.0 if alone and answer else 0.0
"""
TASKS = """
from env import ask
from upcycle import Taskset

NAMES = ("ada", "bob", "eve")
TASKS = Taskset("office-tasks", [ask.task(slug=name, name=name) for name in NAMES], "unassigned")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("office")
    (made / "env.py").write_text(OFFICE)
    (made / "tasks.py").write_text(TASKS)
    return made


@pytest.fixture(scope="module")
def elsewhere(folder: Path) -> Iterator[str]:
    """Another program that serves the environment."""
    os.environ["OFFICE_IS"] = "served"
    try:
        with served(folder / "env.py", "--no-mcp") as (url, _):
            del os.environ["OFFICE_IS"]
            yield url
    finally:
        os.environ.pop("OFFICE_IS", None)


@pytest.fixture
def tasks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Taskset:
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    return Taskset.from_file(folder / "tasks.py")


@pytest.fixture
def agent() -> Iterator[str]:
    """The name of an agent that asks for the process and says it."""
    with serving(
        openai_shaped(lambda results: Turn(results[-1]) if results else Turn("", ("process", {})))
    ) as one:
        yield f"openai:{one.url}/v1#{MODEL}"


async def played(tasks: Taskset, agent: str, runtime: Any, group: int = 1) -> list[Run]:
    async with upcycle.eval(tasks, group=group, runtime=runtime) as context:
        await create_agent(agent).run(context)
    return context.runs


def kept_digests() -> set[str]:
    """Of the code that judged, in what is kept in this folder."""
    files = Path(".upcycle/evaluations").glob("*/trajectories.jsonl")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {row["planned"]["source_digest"] for row in rows}


def processes(runs: list[Run]) -> Counter[str]:
    assert [(run.failure, run.reward) for run in runs] == [("", 1.0)] * len(runs)
    return Counter(run.answer for run in runs)


async def test_forked_episodes_have_a_process_each(tasks: Taskset, agent: str) -> None:
    found = processes(await played(tasks, agent, "forked", group=2))
    assert len(found) == 6
    assert {one.partition(" ")[2] for one in found} == {"local"}


async def test_in_this_process_one_plays_after_the_other(tasks: Taskset, agent: str) -> None:
    assert processes(await played(tasks, agent, "in-process", group=2)) == {f"{os.getpid()} local": 6}


async def test_a_served_environment_plays_where_it_is(tasks: Taskset, agent: str, elsewhere: str) -> None:
    found = processes(await tasks.run(create_agent(agent), runtime=Runtime(elsewhere), group=2))
    assert {one.partition(" ")[2] for one in found} == {"served"}
    assert kept_digests() == {""}  # this machine's file judged nothing


@pytest.mark.parametrize(
    "form", [str, Runtime, lambda url: SimpleNamespace(address=url)], ids=["text", "url", "address"]
)
async def test_a_context_is_entered_once_for_all_episodes(
    tasks: Taskset, agent: str, elsewhere: str, form: Callable[[str], Any]
) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def machine() -> AsyncIterator[Any]:
        said.append("up")
        yield form(elsewhere)
        said.append("down")

    found = processes(await played(tasks, agent, machine(), group=2))
    assert {one.partition(" ")[2] for one in found} == {"served"}
    assert said == ["up", "down"]


async def test_a_function_gives_each_episode_a_context_of_its_own(
    tasks: Taskset, agent: str, elsewhere: str
) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def machine(task: Task) -> AsyncIterator[str]:
        if task.slug == "bob":
            raise RuntimeError("no machine is left")
        said.append(f"up {task.slug}")
        yield elsewhere
        said.append(f"down {task.slug}")
        if task.slug == "eve":
            raise RuntimeError("it would not stop")

    runs = await played(tasks, agent, machine, group=2)
    assert Counter(said) == {f"{word} {slug}": 2 for word in ("up", "down") for slug in ("ada", "eve")}
    assert [run.reward for run in runs] == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert {run.failure for run in runs[2:4]} == {"environment_lost"}
    assert "runtime machine raised RuntimeError: no machine is left" in runs[2].failure_detail


@dataclass
class Gives:
    """A context that yields something."""

    given: Any

    async def __aenter__(self) -> Any:
        return self.given

    async def __aexit__(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        (
            lambda: Runtime("localhost:8765"),
            "'localhost:8765' is no address of a served environment; write tcp",
        ),
        (lambda: "docker", "'docker' is no address"),
        (lambda: 7, "runtime is 7; give 'forked', 'in-process', Runtime"),
        (lambda: Addresses({}, "here"), "runtime is a platform, and this agent plays in this process"),
        (lambda: Gives(None), "runtime Gives gave None, which names no served environment; let it yield"),
        (lambda: lambda task: Gives(task), "gave Task.*let it yield tcp://host:port"),
        (lambda: lambda task: "tcp://127.0.0.1:1", "returned 'tcp://127.0.0.1:1' for task .*@contextlib"),
    ],
)
async def test_what_is_no_runtime_is_refused_by_name(
    tasks: Taskset, agent: str, runtime: Callable[[], Any], said: str
) -> None:
    with pytest.raises(RuntimeRefused, match=said):
        await played(tasks, agent, runtime())


async def test_another_environment_or_none_at_the_address_ends_it_before_any_episode(
    tasks: Taskset, agent: str, elsewhere: str
) -> None:
    with pytest.raises(ChannelClosed, match=r"no environment answers at tcp://127\.0\.0\.1:1"):
        await played(tasks, agent, Runtime("tcp://127.0.0.1:1"))
    (task, *_) = tasks
    other = [Task(upcycle.tasks.EnvironmentRef("shop", path=task.environment.path), "ask", '{"name": "x"}')]
    with pytest.raises(UpcycleError, match=r"serves environment 'office', and the tasks are of 'shop'"):
        await played(Taskset("others", other), agent, Runtime(elsewhere))


@pytest.mark.parametrize("runtime", [Runtime("tcp://h:1"), "forked", lambda task: Gives(task)])
async def test_a_model_of_the_platform_plays_on_its_fleet(tasks: Taskset, runtime: Any) -> None:
    with pytest.raises(RuntimeRefused, match=r"own fleet; leave runtime out.*EnvironmentRef\(name, url="):
        await tasks.run(create_agent("incident"), runtime=runtime)
    async with upcycle.eval(tasks, runtime=runtime) as context:
        with pytest.raises(RuntimeRefused, match="own fleet"):
            await create_agent("incident").run(context)


def test_a_function_plays_in_any_runtime(tasks: Taskset, elsewhere: str) -> None:
    def reply(task: Task, messages: Any) -> Any:
        asked = [one["content"] for one in messages if one["role"] == "tool"]
        call = {"id": "1", "type": "function", "function": {"name": "process", "arguments": "{}"}}
        return asked[-1] if asked else {"content": "", "tool_calls": [call]}

    for runtime, where in (
        (None, "local"),
        ("in-process", "local"),
        ("forked", "local"),
        (elsewhere, "served"),
    ):
        episodes = play_tasks(tasks, reply, runtime=runtime)
        answers = [one.ending.answer for one in episodes if one.ending]
        assert [one.result and one.result.score for one in episodes] == [1.0] * 3, runtime
        assert {answer.partition(" ")[2] for answer in answers} == {where}
        assert len(set(answers)) == (1 if runtime in (None, "in-process") else 3)


def kept_files() -> set[Path]:
    """Folders of evaluations and what is in them."""
    return {*Path(".upcycle/evaluations").rglob("*")}


async def test_the_command_takes_a_runtime(
    tasks: Taskset, agent: str, elsewhere: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(folder / "tasks.py")

    def status(*flags: str) -> tuple[int, str]:
        done = upcycle_command(["eval", file, *flags])
        said = capsys.readouterr()
        return done, said.out + said.err

    done, said = await asyncio.to_thread(status, agent, "--runtime", elsewhere)
    assert (done, f"its environments at {elsewhere}" in said) == (0, True), said
    done, said = await asyncio.to_thread(status, agent, "--runtime", "docker")
    assert (done, "'docker' is no address" in said) == (2, True), said
    written = kept_files()
    done, said = await asyncio.to_thread(status, agent, "--runtime", f"tcp://127.0.0.1:{free_ports(1)[0]}")
    assert done == 4, said
    assert kept_files() == written  # none that is empty
    done, said = await asyncio.to_thread(status, "incident", "--runtime", "forked")
    assert (done, "plays on the platform's own fleet" in said) == (2, True), said


async def test_one_episode_is_played_where_the_environment_is_served_and_nothing_else_is(
    tasks: Taskset, elsewhere: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "asks.py").write_text(
        "def reply(task, messages):\n"
        "    said = [one['content'] for one in messages if one['role'] == 'tool']\n"
        "    call = {'text': '', 'tool_calls': [{'name': 'process', 'arguments': {}}]}\n"
        "    return said[-1] if said else call\n"
    )
    (tmp_path / "other.py").write_text((folder / "env.py").read_text().replace('"office"', '"shop"'))
    (tmp_path / "others.py").write_text((folder / "tasks.py").read_text().replace("from env", "from other"))

    def status(file: Path, *flags: str) -> tuple[int, str]:
        done = upcycle_command(["play", str(file), "--script", "asks.py", *flags])
        said = capsys.readouterr()
        return done, said.out + said.err

    done, said = await asyncio.to_thread(status, folder / "tasks.py", "--runtime", elsewhere)
    assert done == 0, said
    assert f"ada of office, at {elsewhere}" in said
    assert " served" in said
    assert kept_digests() == {""}  # this machine's file judged nothing
    for file, flags, refused in (
        ("tasks.py", ("--runtime", "docker"), "'docker' is no address of a served environment; write tcp"),
        ("tasks.py", ("--runtime", elsewhere, "--in-process"), "both say where the environment runs; give"),
        ("others.py", ("--runtime", elsewhere), "serves environment 'office', and the tasks are of 'shop'"),
    ):
        path = (folder if file == "tasks.py" else tmp_path) / file
        done, said = await asyncio.to_thread(status, path, *flags)
        assert (done, refused in said) == (2, True), said
        assert "Which process" not in said
    done, said = await asyncio.to_thread(status, folder / "tasks.py", "--runtime", "tcp://127.0.0.1:1")
    assert (done, "no environment answers at tcp://127.0.0.1:1" in said) == (4, True), said
    done, said = await asyncio.to_thread(status, folder / "tasks.py", "--runtime", "in-process")
    assert (done, f"{os.getpid()} local" in said) == (0, True), said
