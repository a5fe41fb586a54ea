"""An evaluation of the platform trains a reward model, which then chooses among its attempts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_seed_listings import UPCYCLE, printed
from tests.platform_recipes import MODEL, POLICY_DIR, REPOSITORY, addresses

from local_stack.stack import Stack

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.slow,
    pytest.mark.study,  # the parts have tests of their own; nightly
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The incident example, where the stack's runner may load it."""
    made: Path = REPOSITORY / ".upcycle" / "test_best_of"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(REPOSITORY / "libs" / "upcycle" / "projects" / "templates" / "incident", made)
    return made


async def said(stack: Stack, folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    status, text = await printed(addresses(stack), folder, UPCYCLE, *arguments, "--json")
    line: dict[str, Any] = json.loads([one for one in text.splitlines() if one.startswith("{")][-1])
    return status, line


async def test_a_reward_model_of_a_run_chooses_among_the_attempts_of_a_run(
    stack: Stack, folder: Path
) -> None:
    tasks = ("tasks.py", MODEL, "--taskset-name", "my-agent-train", "--max-tokens-per-turn", "64")
    status, done = await said(stack, folder, "eval", *tasks, "--limit", "12", "--group", "2")
    assert status == 0
    run_id = done["run_id"]
    orm = folder / "orm"
    training = ("reward-model", "train", run_id, "--base", str(POLICY_DIR), "-o", str(orm), "--epochs", "1")
    status, made = await said(stack, folder, *training)
    assert status == 0, made
    assert (made["episodes"] + made["kept_apart"]["num_episodes"], made["tasks"]) == (24, 10)

    chooses = ("--best-of", "2", "--select", f"orm:{orm}")
    status, again = await said(stack, folder, "eval", "--attach", run_id, *chooses)
    assert status == 0, again
    best, episodes = again["best_of"], done["evaluation"]["episodes"]
    assert best["mean"]["value"] == pytest.approx(sum(one["success"] for one in episodes) / 24)
    solved = {one["trajectory_id"] for one in episodes if one["success"]}
    assert [one["success"] for one in best["choices"]] == [
        one["episode"] in solved for one in best["choices"]
    ]
    assert best["chosen"]["value"] == sum(one["success"] for one in best["choices"]) / 12
    assert (best["num_tasks"], best["num_seen"], best["num_unscored"]) == (12, 10, 0)

    status, fresh = await said(stack, folder, "eval", *tasks, "--limit", "3", *chooses)
    assert (status, len(fresh["best_of"]["choices"]), len(fresh["evaluation"]["episodes"])) == (0, 3, 6)
    status, refused = await said(
        stack, folder, "eval", "--attach", run_id, "--best-of", "4", "--select", f"orm:{orm}"
    )
    assert status == 2
    assert f"{run_id} has 2 attempts at each task, and --best-of is 4" in refused["error"]["message"]
