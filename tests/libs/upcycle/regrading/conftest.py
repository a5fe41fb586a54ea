"""A shop that was played, and whose episodes are in a trajectories file."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from upcycle.environment.source_files import source_digest
from upcycle.external.evaluating import run_of
from upcycle.external.keys import KEY_VARIABLES
from upcycle.playing.blame import Blame
from upcycle.playing.in_process import play_tasks
from upcycle.runtimes import LocalRuntime
from upcycle.tasks import Taskset
from upcycle.trajectory_lines.writing import line_of_played
from upcycle.usage import NONE

ENVIRONMENT = '''
from pathlib import Path

from grading import grade

from upcycle import Environment

env = Environment("shop")
OUTSIDE = Path(__file__).with_name("outside.txt")
SOLD = []


@env.state()
def state():
    return {"sold": SOLD, "hidden": len(OUTSIDE.read_text()) if "hidden" in OUTSIDE.read_text() else 0}


@env.tool()
def sell(item: str) -> str:
    """Sell one."""
    SOLD.append(item)
    return f"{len(SOLD)} sold"


@env.tool()
def weather() -> str:
    """Of another day, another one."""
    return f"today: {OUTSIDE.read_text()}"


@env.scenario("count")
async def count(item: str, wanted: str):
    answer = yield f"How much {item}? It is {OUTSIDE.read_text()}." if item == "now" else f"How much {item}?"
    yield grade(str(answer), wanted, len(SOLD))
'''
GRADING = """
def grade(answer, wanted, sold):
    exact = float(answer == wanted)
    return {"score": exact, "subscores": [{"name": "exact", "value": exact}]}
"""
TASKS = """
from env import count
from upcycle import Taskset

ITEMS = ("tea", "milk", "rain", "now")
ALL = [count.task(slug=item, item=item, wanted="1 sold") for item in ITEMS]
TASKS = Taskset("shop-tasks", ALL, "unassigned")
"""
RUN = "here-0123456789ab"


def reply(task: Any, messages: list[dict[str, Any]]) -> Any:
    """Sells and says so; asks for the weather where it rains; says something else of milk."""
    last = messages[-1]
    if last["role"] == "user":
        name = "weather" if task.slug == "rain" else "sell"
        return {"tool_calls": [{"name": name, "arguments": {} if name == "weather" else {"item": task.slug}}]}
    return "a lot" if task.slug == "milk" else last["content"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the shop, which is the working directory, with its played trajectories.jsonl."""
    for name in (*KEY_VARIABLES, "UPCYCLE_JUDGE", "UPCYCLE_JUDGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, text in (("env.py", ENVIRONMENT), ("grading.py", GRADING), ("tasks.py", TASKS)):
        (tmp_path / name).write_text(text)
    (tmp_path / "outside.txt").write_text("dry")
    monkeypatch.chdir(tmp_path)
    played(tmp_path)
    return tmp_path


def played(folder: Path, num_attempts: int = 2) -> None:
    """Each task so often, in processes of their own."""
    taskset = Taskset.from_file(folder / "tasks.py")
    rows = []
    for attempt in range(num_attempts):
        for episode in play_tasks(taskset, reply, runtime=LocalRuntime.FORKED):
            name = f"{RUN}/{episode.task.slug}/{attempt}"
            line = line_of_played(episode, run_of(episode, RUN, name, Blame(), NONE), None, "script")
            planned = {"source_digest": source_digest(folder / "env.py"), "taskset": "shop-tasks"}
            rows.append({**line, "planned": planned})
    (folder / "trajectories.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def edited(shop: Path) -> Callable[[Callable[[dict[str, Any]], Mapping[str, Any] | None]], None]:
    """Rewrites each line of the file; None leaves one out."""

    def edit(change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
        path = shop / "trajectories.jsonl"
        rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows if row is not None))

    return edit
