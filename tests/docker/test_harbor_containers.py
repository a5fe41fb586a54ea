"""Harbor task directories in containers of their images, by the engine of this machine."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.docker.composed import image_of
from tests.docker.conftest import on_engine
from tests.libs.upcycle.importers.test_harbor import HARBOR, TOML, played, results, shell, written

from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.importers.harbor.container import LABEL

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

BASE = image_of("UPCYCLE_PYTHON_IMAGE")
DOCKERFILE = f"""
FROM {BASE} AS base
RUN mkdir -p /opt/made && echo "made by RUN" > /opt/made/note && useradd -m agent
ENV GREETING="hello there"
WORKDIR /app
COPY data/ ./data
COPY tool.sh /opt/tools/
"""


@pytest.fixture(scope="module", autouse=True)
def base() -> str:
    """The image of the tasks' base."""
    return on_engine(BASE)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of one task directory, whose image is built."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "tasks" / "sort-names", {"environment/Dockerfile": DOCKERFILE})
    (tmp_path / "harbor.py").write_text(HARBOR.replace('"tasks")\n', '"tasks", engine="docker")\n'))
    return tmp_path


@pytest.fixture
def built(project: Path) -> Path:
    done = make_images(project)
    assert done.returncode == 0, done.stderr
    assert "sort-names: upcycle-harbor:" in done.stdout
    return project


@pytest.fixture(autouse=True)
def no_container_is_left() -> Iterator[None]:
    yield
    assert containers() == []


def make_images(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "upcycle.importers.harbor", str(project / "tasks")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def containers() -> list[str]:
    listed = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"label={LABEL}"], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def test_the_solution_earns_the_reward_of_the_tests_and_doing_nothing_does_not(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "harbor.py", "--max-cheat", "0.3"]) == Exit.OK, capsys.readouterr().out
    assert "gold answers earn 1 to 1" in capsys.readouterr().out


def test_an_agent_works_in_its_image_and_never_sees_the_tests(built: Path) -> None:
    episode = played(
        built,
        shell("pwd; cat data/names.txt /opt/made/note; echo $GREETING; bash /opt/tools/tool.sh; ls /tests"),
        shell("printf 'a\\nb\\nend\\n' > /app/out.txt; cat /app/out.txt"),
        "Done.",
    )
    first, second = results(episode)
    assert first.startswith("/app\nb\na\nmade by RUN\nhello there\nb\na\n")
    assert "No such file" in first
    assert second == "a\nb\nend\n\n(exit status 0)"
    assert episode.result is not None
    assert (episode.result.score, episode.result.info) == (1.0, {"rewards": {"quality": 0.5}})


def test_a_reward_that_the_agent_wrote_itself_is_not_read(built: Path) -> None:
    cheat = (
        "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo 'exit 0' > /tests/test.sh"
    )
    episode = played(built, shell(cheat), "Done.")
    assert episode.result is not None
    assert episode.result.score == 0.25


def test_an_episode_leaves_nothing_for_the_next_nor_on_this_machine(built: Path) -> None:
    first = played(built, shell("echo x > /app/left.txt; ls /app"), "Done.")
    second = played(built, shell("ls /app"), "Done.")
    assert "left.txt" in results(first)[0]
    assert "left.txt" not in results(second)[0]
    assert not Path("/app/left.txt").exists()


def test_tests_that_do_not_end_are_ended(built: Path) -> None:
    slow: Mapping[str, str | None] = {
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": "sleep 600\n",
        "task.toml": TOML.replace("120.0\nenv", "0.5\nenv"),
    }
    written(built / "tasks" / "sort-names", slow)
    episode = played(built, "Done.")
    assert episode.failure is not None
    assert "not over within 0.5 s" in str(episode.failure)


def test_a_task_without_network_has_none(built: Path) -> None:
    alone = {"environment/Dockerfile": DOCKERFILE, "task.toml": TOML + "allow_internet = false\n"}
    written(built / "tasks" / "sort-names", alone)
    (said,) = results(played(built, shell("cat /proc/net/dev | tail -n +3 | cut -d: -f1"), "Done."))
    assert said.split() == ["lo", "(exit", "status", "0)"]


def test_an_image_that_is_not_built_is_named_with_the_command_that_builds_it(project: Path) -> None:
    written(
        project / "tasks" / "sort-names", {"environment/Dockerfile": f"{DOCKERFILE}ENV OTHER={project}\n"}
    )
    episode = played(project, "Done.")
    assert episode.failure is not None
    assert "python -m upcycle.importers.harbor" in str(episode.failure)


def test_an_image_that_cannot_be_built_says_why(project: Path) -> None:
    written(project / "tasks" / "sort-names", {"environment/Dockerfile": f"FROM {BASE}\nRUN exit 7\n"})
    done = make_images(project)
    assert done.returncode == 1
    assert "sort-names: the image was not made: " in done.stderr
    assert "7" in done.stderr
