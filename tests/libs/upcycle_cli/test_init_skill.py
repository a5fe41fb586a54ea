"""The skill of a new project: where coding agents look for it, in their form; its check can say no."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from upcycle.environment import load_environment
from upcycle.projects.writing import NewProject, write_project
from upcycle.tasks import Taskset

NAME = "upcycle-environment"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    write_project(NewProject(folder, "blank", 4, 4), folder)
    return folder


def test_it_has_the_form_that_coding_agents_read(project: Path) -> None:
    skill = project / ".agents" / "skills" / NAME
    _, head, body = (skill / "SKILL.md").read_text().split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields.keys() == {"name", "description"}
    assert fields["name"] == skill.name
    assert 0 < len(fields["description"]) <= 1024
    named = re.findall(r"`(?:\.agents/skills/[a-z-]+/)?((?:scripts|examples)/[a-z]+\.py)`", body)
    assert sorted(named) == ["examples/fields.py", "examples/state.py"]
    assert f"python .agents/skills/{NAME}/scripts/check.py" in body
    files = {str(path.relative_to(skill)) for path in skill.rglob("*") if path.is_file()}
    assert files == {"SKILL.md", "scripts/check.py", *named}


def test_an_agent_that_looks_in_its_own_folder_finds_the_same(project: Path) -> None:
    link = project / ".claude" / "skills" / NAME
    assert link.resolve() == project / ".agents" / "skills" / NAME
    assert not Path(link.readlink()).is_absolute()  # the project may be moved


@pytest.mark.parametrize("name", ["state", "fields"])
async def test_nothing_is_found_in_its_examples(project: Path, name: str) -> None:
    path = project / ".agents" / "skills" / NAME / "examples" / f"{name}.py"
    taskset = Taskset.load(path)
    seen = await load_environment(path).validate(taskset.tasks)
    assert seen.is_clean, seen.findings
    assert set(seen.gold.values()) == {1.0}


@pytest.mark.timeout(900)
def test_the_check_names_what_is_broken(project: Path) -> None:
    (project / "player.py").write_text("def reply(task, messages):\n    return 'seven'\n")
    check = project / ".claude" / "skills" / NAME / "scripts" / "check.py"
    done = subprocess.run(
        [sys.executable, str(check)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "ok: gold answers earn everything, cheats nothing" in done.stdout
    assert "failed: the reference player solves a task" in done.stdout
    assert "it earned 0.0 of train-0000000 by answering 'seven'" in done.stdout
    assert "failed: the tests pass" in done.stdout
