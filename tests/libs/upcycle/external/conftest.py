"""A shop whose stock a tool tells, and whose tasks ask for it."""

from pathlib import Path

import pytest

from upcycle.external.keys import KEY_VARIABLES
from upcycle.tasks import Taskset

ENVIRONMENT = '''
import os
from upcycle import Environment

env = Environment("shop")


@env.tool()
def stock(item: str) -> str:
    """How much there is."""
    if item == "gone":
        os._exit(7)
    return {"tea": "3", "milk": "5"}[item]


@env.tool()
def keys() -> str:
    """Names and values of this process's variables."""
    return repr(dict(os.environ))


@env.tool()
def orphan() -> str:
    """End the process that forked this one."""
    os.kill(os.getppid(), 9)
    return "done"


@env.scenario("count")
async def count(item: str, wanted: str, fails: str = ""):
    if fails == "prompt":
        raise RuntimeError("no shop today")
    answer = yield f"How much {item}?"
    if fails == "last turn":
        assert not answer.trajectory.turns[-1].text
    if fails == "answer" and answer:
        raise KeyError(answer)
    yield 1.0 if answer == wanted else 0.0
'''
TASKS = """
from env import count
from upcycle import Taskset

TASKS = Taskset("shop-tasks", [count.task(slug="tea", item="tea", wanted="3"),
                               count.task(slug="milk", item="milk", wanted="5")], "unassigned")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the shop, which is the working directory; no key of the caller is set."""
    for name in (*KEY_VARIABLES, "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tasks(shop: Path) -> Taskset:
    """Tea and milk."""
    return Taskset.from_file(shop / "tasks.py")
