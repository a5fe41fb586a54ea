"""No model of the platform sees: an environment that shows an image is refused by name, with the way out."""

from pathlib import Path

import pytest
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.domain.environments import EpisodeError, PythonEnvironment

SOURCE = """
from upcycle import Environment, Image

PNG = b"\\x89PNG\\r\\n\\x1a\\n" + bytes(40)
env = Environment("screen")

@env.tool()
def screenshot() -> Image:
    return Image(PNG)

@env.scenario()
async def look(at_once: bool = False):
    yield [{"role": "user", "content": ["What is there?", Image(PNG)] if at_once else "What is there?"}]
    yield 1.0
"""
WAY_OUT = "no model of this platform sees images; play it with an agent of others (upcycle eval TASKS claude)"


@pytest.fixture
def screen(tmp_path: Path) -> PythonEnvironment:
    path = tmp_path / "screen.py"
    path.write_text(SOURCE)
    return PythonEnvironment("screen", str(path))


async def test_a_prompt_with_an_image_is_refused(fleet: Fleet, screen: PythonEnvironment) -> None:
    with pytest.raises(EpisodeError) as caught:
        await fleet.open("look", '{"at_once": true}', source=screen)
    assert caught.value.failure_kind == "environment_broken"
    assert f"the prompt has an image: {WAY_OUT}" in str(caught.value)


async def test_a_tool_that_shows_one_is_refused_and_is_no_failure_of_the_policy(
    fleet: Fleet, screen: PythonEnvironment
) -> None:
    opened = await fleet.open("look", source=screen)
    with pytest.raises(EpisodeError) as caught:
        await fleet.call(opened, "screenshot")
    assert caught.value.failure_kind == "environment_broken"
    assert f"tool screenshot returned an image: {WAY_OUT}" in str(caught.value)
