"""What an environment declares for the beginning and the end runs in the fleet's episode processes."""

from pathlib import Path

import pytest
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.domain.environments import EpisodeError, PythonEnvironment

SOURCE = """
from upcycle import Environment

env = Environment("shop")

def note(what):
    with open({log!r}, "a") as file:
        file.write(what + " ")

@env.initialize
def connect():
    note("connect")
    {connecting}

@env.shutdown
async def disconnect():
    note("disconnect")

@env.scenario()
async def ask():
    yield "?"
    note("grade")
    yield 1.0
"""


def shop(folder: Path, connecting: str = "pass") -> PythonEnvironment:
    """An environment whose episodes write into a file of the folder."""
    (folder / "log").touch()
    (folder / "log").chmod(0o666)
    path = folder / "shop.py"
    path.write_text(SOURCE.format(log=str(folder / "log"), connecting=connecting))
    return PythonEnvironment("shop", str(path))


async def test_an_episode_begins_and_ends_with_what_is_declared(fleet: Fleet, tmp_path: Path) -> None:
    source = shop(tmp_path)
    graded = await fleet.open("ask", source=source)
    assert (await fleet.grade(graded)).reward == 1.0
    assert (tmp_path / "log").read_text().split() == ["connect", "grade", "disconnect"]
    closed = await fleet.open("ask", source=source)
    await fleet.leases.close(closed.lease_id)
    assert (tmp_path / "log").read_text().split()[3:] == ["connect", "disconnect"]


async def test_an_episode_that_cannot_begin_names_what_raised(fleet: Fleet, tmp_path: Path) -> None:
    source = shop(tmp_path, "raise RuntimeError('no database')")
    with pytest.raises(EpisodeError) as caught:
        await fleet.open("ask", source=source)
    assert "@env.initialize: connect raised RuntimeError: no database" in str(caught.value)
    assert caught.value.failure_kind == "environment_broken"  # an author's error: played no more
