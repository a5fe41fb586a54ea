"""What the preset mcp promises beside that it works: test_init.py plays it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from tests.support.mcp_results import text_of

from upcycle.environment.source_files import read_source
from upcycle.projects.writing import NewProject, write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "sentry-agent"
    folder.mkdir()
    write_project(NewProject(folder, "mcp", 40, 20), folder)
    return folder


def run_python(folder: Path, program: str) -> list[list[str]]:
    """What a program that is run in the project prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(400)
async def test_its_server_has_one_culprit_among_several_issues(project: Path) -> None:
    program = StdioServerParameters(command=sys.executable, args=[str(project / "sentry.py")])
    async with Client(program, read_timeout_seconds=90) as client:
        assert {one.name for one in (await client.list_tools()).tools} == {
            "get_sentry_issues",
            "get_stack_trace",
        }
        issues = text_of(await client.call_tool("get_sentry_issues", {"project": "harbour-3"})).splitlines()
        assert len(issues) == 3
        names = [line.split("#")[1].split()[0] for line in issues]
        stacks = [text_of(await client.call_tool("get_stack_trace", {"issue_id": name})) for name in names]
        assert sum("UpstreamError" in stack for stack in stacks) == 1
        wrong = await client.call_tool("get_stack_trace", {"issue_id": "harbour-3-99"})
        assert (wrong.is_error, "get_sentry_issues lists them" in text_of(wrong)) == (True, True)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("names", ["few", "new"])
def test_no_project_gives_its_cause_away_and_no_held_out_service_trains(project: Path, names: str) -> None:
    rows = run_python(
        project,
        f"import json, projects; projects.NAMES = {names!r}\n"
        "from projects import incident_of, project_of\n"
        "rows = [(s, i, incident_of(project_of(s, i))) for s in ('train', 'held_out') for i in range(200)]\n"
        "print(json.dumps([[s, str(i % 4), one.cause, *one.services] for s, i, one in rows]))",
    )
    causes = {rest: {row[2] for row in rows if row[1] == rest} for rest in "0123"}
    assert {len(found) for found in causes.values()} == {4}
    services = {
        split: {name for row in rows if row[0] == split for name in row[3:]}
        for split in ("train", "held_out")
    }
    assert not services["train"] & services["held_out"] or names == "few"
    assert (len(services["train"] | services["held_out"]) == 16) == (names == "few")


def test_an_edit_of_its_server_is_an_edit_of_the_environment(project: Path) -> None:
    held = read_source(project / "env.py").files.keys()
    assert {"env.py", "sentry.py", "projects.py", "world.py", "names.py", "grading.py"} <= held
