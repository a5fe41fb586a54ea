"""Harbor task directories: what is played in a folder, and what is refused because it needs its image."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.environment import load_environment
from upcycle.importers.errors import ImportRefused
from upcycle.importers.harbor.offering import opened
from upcycle.importers.harbor.reading import ContainerImage, read_task
from upcycle.playing.episode import PlayedEpisode
from upcycle.playing.in_process import play_tasks
from upcycle.task_rows import Task
from upcycle.tasks import Taskset

TOML: Final = """
version = "1.0"

[metadata]
category = "files"
difficulty = "easy"

[verifier]
timeout_sec = 120.0
env = { LIMIT = "3" }

[agent]
timeout_sec = 120.0

[environment]
cpus = 1
"""
DOCKERFILE: Final = """
FROM python:3.13-slim AS base
# what the agent finds
ENV GREETING="hello there" \\
    PLACE=/app/notes
WORKDIR /app
COPY --chmod=755 data/ ./data
COPY tool.sh /opt/tools/
CMD ["bash"]
"""
TEST: Final = """#!/bin/bash
mkdir -p /logs/verifier
lines=$(wc -l < /app/out.txt)
if diff -q /app/out.txt /tests/expected.txt && [ "$lines" -le "$LIMIT" ]; then
  echo '{"reward": 1.0, "quality": 0.5}' > /logs/verifier/reward.json
else
  echo 0.25 > /logs/verifier/reward.txt
fi
"""
SOLVE: Final = """#!/bin/bash
sort /app/data/names.txt > /app/out.txt
python3 /solution/more.py
"""
FILES: Final[Mapping[str, str]] = {
    "task.toml": TOML,
    "instruction.md": "Sort /app/data/names.txt into /app/out.txt, with 'end' as its last line.\n",
    "environment/Dockerfile": DOCKERFILE,
    "environment/data/names.txt": "b\na\n",
    "environment/tool.sh": "cat /app/data/names.txt",
    "tests/test.sh": TEST,
    "tests/expected.txt": "a\nb\nend\n",
    "solution/solve.sh": SOLVE,
    "solution/more.py": "open('/app/out.txt', 'a').write('end\\n')",
}
HARBOR: Final = """
from upcycle import Environment
from upcycle.importers.harbor import offer

env = Environment("harbor", data=["tasks"])
tasks = offer(env, "tasks")
"""


def written(folder: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    for path, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of one task directory."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "tasks" / "sort-names")
    (tmp_path / "harbor.py").write_text(HARBOR)
    return tmp_path


def played(project: Path, *turns: object) -> PlayedEpisode:
    """Its task, by a player who says these turns."""
    said = list(turns)

    def reply(task: Task, messages: list[dict[str, object]]) -> object:
        return said.pop(0)

    (episode,) = play_tasks(Taskset.from_file(project / "harbor.py"), reply)
    return episode


def shell(command: str) -> dict[str, object]:
    return {"text": "", "tool_calls": [{"name": "shell", "arguments": {"command": command}}]}


def results(episode: PlayedEpisode) -> list[str]:
    return [call.result for call in episode.transcript.tool_calls]


def test_the_solution_earns_the_reward_of_the_tests_and_doing_nothing_does_not(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = Taskset.from_file(project / "harbor.py")
    (task,) = tasks
    assert (task.slug, task.family, tasks.split, tasks.environment.name) == (
        "sort-names",
        "files",
        "held_out",
        "harbor",
    )
    assert run(["check", "harbor.py", "--max-cheat", "0.3"]) == Exit.OK, capsys.readouterr().out
    assert "gold answers earn 1 to 1" in capsys.readouterr().out


def test_an_agent_works_with_the_paths_of_the_image(project: Path) -> None:
    episode = played(
        project,
        shell("pwd; cat data/names.txt; echo $GREETING $PLACE; bash /opt/tools/tool.sh; ls /tests"),
        shell("printf 'a\\nb\\nend\\n' > /app/out.txt; cat /app/out.txt"),
        "Done.",
    )
    first, second = results(episode)
    assert first.startswith("/app\nb\na\nhello there /app/notes\nb\na\n")
    assert "No such file" in first
    assert second == "a\nb\nend\n\n(exit status 0)"
    assert [message["content"] for message in episode.prompt] == [FILES["instruction.md"].strip()]
    assert episode.result is not None
    assert (episode.result.score, episode.result.success) == (1.0, True)
    assert episode.result.info == {"rewards": {"quality": 0.5}}


def test_a_reward_that_the_agent_wrote_itself_is_not_read(project: Path) -> None:
    cheat = (
        "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo 'exit 0' > /tests/test.sh"
    )
    episode = played(project, shell(cheat), "Done.")
    assert episode.result is not None
    assert episode.result.score == 0.25


def test_what_an_episode_leaves_is_gone_and_nothing_lies_on_this_machine(project: Path) -> None:
    first = played(project, shell("echo x > /app/left.txt; echo y > ~/left.txt; ls ~"), "Done.")
    second = played(project, shell("ls /app ~"), "Done.")
    assert "left.txt" in results(first)[0]
    assert "left.txt" not in results(second)[0]
    assert not Path("/app/left.txt").exists()


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("exit 3\n", "ended with status 3 and wrote no reward to /logs/verifier"),
        ("echo much > /logs/verifier/reward.txt\n", "could not convert string to float"),
        ("echo nan > /logs/verifier/reward.txt\n", "nan is no reward"),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json\n', "KeyError('reward')"),
    ],
)
def test_tests_that_write_no_reward_say_so(tmp_path: Path, test: str, said: str) -> None:
    task = read_task(written(tmp_path / "odd", {"tests/test.sh": test}))
    with opened(task) as place, pytest.raises(RuntimeError) as failed:
        place.verdict()
    assert said in str(failed.value)


def test_tests_that_do_not_end_are_ended(tmp_path: Path) -> None:
    slow = TOML.replace("120.0\nenv", "0.5\nenv")
    task = read_task(written(tmp_path / "slow", {"tests/test.sh": "sleep 600\n", "task.toml": slow}))
    with opened(task) as place, pytest.raises(RuntimeError, match=r"not over within 0\.5 s"):
        place.verdict()


REFUSED: Final[tuple[tuple[dict[str, str | None], str], ...]] = (
    ({"environment/Dockerfile": "FROM ubuntu:24.04\nRUN \\\n  apt-get install -y jq\n"}, "Dockerfile:2: RUN"),
    ({"environment/Dockerfile": "FROM some-org/bench:1\n"}, "image 'some-org/bench:1': it needs a container"),
    ({"environment/Dockerfile": "FROM ubuntu\nCOPY --from=base /x /app/\n"}, "Dockerfile:2: COPY"),
    ({"environment/Dockerfile": "FROM ubuntu\nCOPY gone.txt /app/\n"}, "there is no 'gone.txt' beside it"),
    ({"environment/Dockerfile": "FROM ubuntu\nUSER agent\n"}, "Dockerfile:2: USER 'agent'"),
    ({"environment/Dockerfile": "FROM ubuntu\nWORKDIR /etc/x\n"}, "/etc/x is a place of the system"),
    ({"environment/docker-compose.yaml": "services: {}"}, "has a docker-compose.yaml"),
    ({"task.toml": TOML + 'docker_image = "org/image:1"\n'}, "image 'org/image:1'"),
    ({"task.toml": TOML + "gpus = 1\n"}, "needs a GPU"),
    ({"task.toml": TOML + '[[steps]]\nname = "one"\n'}, "has steps"),
    ({"task.toml": TOML.replace('"3"', '"${LIMIT}"')}, "LIMIT takes '${LIMIT}' from your shell"),
    ({"task.toml": "version ="}, "task.toml: not TOML"),
    ({"task.toml": None}, "task.toml cannot be read: No such file"),
    ({"instruction.md": " \n"}, "instruction.md is empty"),
    ({"tests/test.sh": None}, "there is no tests/test.sh"),
)


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_a_task_that_needs_more_than_a_folder_is_refused_by_name(
    tmp_path: Path, changes: dict[str, str | None], said: str
) -> None:
    folder = written(tmp_path / "sort-names", changes)
    with pytest.raises(ImportRefused, match="sort-names") as refused:
        read_task(folder)
    assert said in str(refused.value)


def test_run_lines_of_a_dockerfile_may_be_left_to_the_machine(project: Path) -> None:
    other = written(
        project / "tasks" / "needs-jq", {"environment/Dockerfile": "FROM ubuntu\nRUN install jq\n"}
    )
    with pytest.raises(ImportRefused, match="or ignore_run=True"):
        load_environment(project / "harbor.py")
    assert read_task(other, ignore_run=True).image.workdir == "/app"


def test_tasks_that_are_refused_may_be_left_out(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(project / "tasks" / "needs-jq", {"environment/Dockerfile": "FROM ubuntu\nRUN install jq\n"})
    path = project / "skipping.py"
    path.write_text(HARBOR.replace('"tasks")\n', '"tasks", skip_refused=True)\n'))
    assert [task.slug for task in Taskset.from_file(path)] == ["sort-names"]
    assert "left out: needs-jq/environment/Dockerfile:2: RUN" in capsys.readouterr().err


def test_a_directory_that_has_changed_is_another_task(project: Path) -> None:
    (task,) = Taskset.from_file(project / "harbor.py")
    written(project / "tasks" / "sort-names", {"instruction.md": "Sort them."})
    (project / "again.py").write_text(HARBOR)
    (changed,) = Taskset.from_file(project / "again.py")
    assert changed.digest != task.digest


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "harbor.py").write_text(HARBOR)
    with pytest.raises(ImportRefused, match="has no task that is played here"):
        load_environment(tmp_path / "harbor.py")


def test_a_task_in_a_container_needs_an_image_and_nothing_that_only_harbor_has(tmp_path: Path) -> None:
    run_line = {"environment/Dockerfile": "FROM org/bench:1\nRUN install jq\nUSER agent\n"}
    image = read_task(written(tmp_path / "needs-jq", run_line), in_container=True).image
    assert isinstance(image, ContainerImage)
    assert (image.name, image.cpus, image.has_network) == ("", 1.0, True)
    with pytest.raises(ImportRefused, match="neither an environment/Dockerfile nor a docker_image"):
        read_task(written(tmp_path / "bare", {"environment/Dockerfile": None}), in_container=True)
    with pytest.raises(ImportRefused, match="needs a GPU, which is not played here"):
        read_task(written(tmp_path / "gpu", {"task.toml": TOML + "gpus = 1\n"}), in_container=True)


def test_an_engine_that_is_none_or_is_away_is_refused_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    for engine, said in (("kubernetes", "is no container engine"), ("docker", "no program 'docker'")):
        (project / f"{engine}.py").write_text(HARBOR.replace('"tasks")\n', f'"tasks", engine="{engine}")\n'))
        with pytest.raises(ImportRefused, match=said):
            load_environment(project / f"{engine}.py")


def test_an_engine_that_does_not_answer_is_not_said_to_lack_the_image(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = project / "bin" / "docker"
    engine.parent.mkdir()
    engine.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 125\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:/usr/bin:/bin")
    (project / "harbor.py").write_text(HARBOR.replace('"tasks")\n', '"tasks", engine="docker")\n'))
    (project / "turns.jsonl").write_text('"done"\n')
    assert (
        run(["play", str(project / "harbor.py"), "--script", str(project / "turns.jsonl"), "--no-keep"]) == 1
    )
    assert "Cannot connect to the daemon" in capsys.readouterr().out
