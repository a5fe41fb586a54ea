"""An evaluation of the platform is graded again: by the source that it packed, then by an edited grader."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from tests.e2e.test_seed_listings import UPCYCLE, printed
from tests.platform_recipes import MODEL, REPOSITORY, addresses

from local_stack.stack import Stack

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]


REFUSED: Final = "return Grade(0.0, False, dict.fromkeys(WEIGHTS, 0.0), reason)"


@pytest.fixture(scope="module")
def folder() -> Path:
    """The incident example, where the stack's runner may load it, and an author may edit it."""
    made: Path = REPOSITORY / ".upcycle" / "test_regraded"
    shutil.rmtree(made, ignore_errors=True)
    project = REPOSITORY / "libs" / "upcycle" / "projects" / "templates" / "incident"
    shutil.copytree(project, made)
    return made


async def said(stack: Stack, folder: Path, *arguments: str) -> dict[str, Any]:
    status, text = await printed(addresses(stack), folder, UPCYCLE, *arguments, "--json")
    assert status == 0, text
    line: dict[str, Any] = json.loads([one for one in text.splitlines() if one.startswith("{")][-1])
    return line


async def test_a_run_is_graded_again_by_its_own_source_and_by_an_edited_one(
    stack: Stack, folder: Path
) -> None:
    sampled = ("--limit", "3", "--group", "2", "--max-tokens-per-turn", "64")
    done = await said(stack, folder, "eval", "tasks.py", MODEL, "--taskset-name", "my-agent-train", *sampled)
    run_id, rewards = done["run_id"], [one["reward"] for one in done["evaluation"]["episodes"]]
    assert len(rewards) == 6
    grading = folder / "grading.py"
    text = grading.read_text()
    assert REFUSED in text
    grading.write_text(text.replace(REFUSED, REFUSED.replace("0.0", "0.25", 1)))

    own = await said(stack, folder, "trajectories", "regrade", run_id)
    assert (own["is_own_source"], own["source"]) == (True, done["source_digest"][:12])
    assert (own["coverage"], own["up"], own["down"]) == (1.0, 0, 0)
    assert own["new_reward"] == pytest.approx(sum(rewards) / 6)
    edited = await said(stack, folder, "trajectories", "regrade", run_id, "--source", "env.py")
    assert (edited["is_own_source"], edited["coverage"], edited["down"]) == (False, 1.0, 0)
    assert edited["up"] == rewards.count(0.0)

    kept = await said(stack, folder, "trajectories", "list", "--run", run_id, "--limit", "1")
    assert kept["reward"] in rewards  # the report changed nothing
