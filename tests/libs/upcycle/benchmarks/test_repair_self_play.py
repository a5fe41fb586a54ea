"""Self-play on repair-30's training repositories: what an agent plants is read from its calls, and mended."""

from typing import Any

import pytest

from upcycle import EvaluationResult
from upcycle.benchmarks.repair_30.env import env, mend, plant
from upcycle.benchmarks.repair_30.planting import NoDefect, changed, intact, library_of, planted
from upcycle.benchmarks.repair_30.players import Calls, writes
from upcycle.benchmarks.repair_30.self_play import tasks
from upcycle.errors import ScenarioError
from upcycle.generator import Parent
from upcycle.scenario import Scenario
from upcycle.transcripts import Answer, ToolUse, Transcript, Turn

SEEDS = (0, 1)
"""One of each training repository."""


def path_of(seed: int) -> str:
    """Of the module that the known defect is in."""
    library = library_of(seed)
    return f"{library.name}/{library.defects[0].file}"


def gold_of(scenario: Scenario, arguments: dict[str, Any]) -> Calls:
    reference = scenario.reference(arguments)
    assert reference is not None
    return tuple((name, dict(given)) for name, given in reference.calls)


async def played(
    scenario: Scenario, arguments: dict[str, Any], calls: Calls
) -> tuple[EvaluationResult, Answer]:
    """What calls of tools earn, and the answer that led to it."""
    play = scenario.play(arguments)
    try:
        await play.start()
        used = []
        for name, given in calls:
            result = await env.call_tool(name, given)
            used.append(ToolUse(name, given, result.text, result.is_error))
        answer = Answer("done", Transcript((Turn("", tuple(used)),)))
        return await play.grade(answer), answer
    finally:
        await play.close()


async def task_of(seed: int, answer: Answer) -> dict[str, Any]:
    """The arguments of the task that an answer proposes."""
    return await mend.generate(7, Parent({"seed": seed}, solved=True, proposal=answer))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_planted_defect_is_a_proposal_whose_task_is_mended_by_putting_it_back(seed: int) -> None:
    result, answer = await played(plant, {"seed": seed}, gold_of(plant, {"seed": seed}))
    assert (result.score, result.success) == (1.0, True)
    arguments = await task_of(seed, answer)
    assert arguments == {"seed": seed, "modules": changed(seed, answer.trajectory)}
    assert list(arguments["modules"]) == [path_of(seed)]
    mended, _ = await played(mend, arguments, gold_of(mend, arguments))
    assert (mended.score, mended.success) == (1.0, True)
    comment = writes({path_of(seed): f"{arguments['modules'][path_of(seed)]}\n# mended\n"})
    idle, _ = await played(mend, arguments, comment)
    assert (idle.score, idle.success) == (0.0, False)


async def test_the_repository_of_the_proposer_is_right_and_that_of_the_solver_is_not() -> None:
    modules = {path_of(0): planted_text(0)}
    for scenario, arguments, said in (
        (plant, {"seed": 0}, "OK\n\n(exit status 0)"),
        (mend, {"seed": 0, "modules": modules}, "FAILED (failures="),
    ):
        play = scenario.play(arguments)
        await play.start()
        try:
            assert said in (await env.call_tool("run_tests", {})).text
        finally:
            await play.close()


def planted_text(seed: int) -> str:
    library = library_of(seed)
    return library.sources([library.defects[0]])[path_of(seed)]


def harmless(seed: int) -> str:
    return library_of(seed).sources()[path_of(seed)]


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({}, "no module was changed"),
        ({"tests/test_ledger.py": "x = 1"}, "no module was changed"),
        ({path_of(0): f"{harmless(0)}\n# as before\n"}, "0 of 3000 calls return something else"),
        ({path_of(0): f"{harmless(0)}\n{'#' * 60_000}\n"}, "characters; at most 48,000 may be"),
        ({path: "" for path in library_of(0).sources()}, "of 3000 calls are still right"),
        ({path_of(0): f"{harmless(0)}\nimport os\nos._exit(0)\n"}, "do not run to their end"),
    ],
)
def test_what_is_no_defect_is_said_so(modules: dict[str, str], said: str) -> None:
    with pytest.raises(NoDefect, match=said.replace("(", r"\(")):
        planted(0, modules)


def test_a_defect_that_comes_and_goes_is_none() -> None:
    names = [line[4:].split("(")[0] for line in harmless(0).splitlines() if line.startswith("def ")]
    changing = "\n".join(f"def {name}(*_): return os.urandom(8)" for name in names)
    with pytest.raises(NoDefect, match="something else each time"):
        planted(0, {path_of(0): f"{harmless(0)}\nimport os\n{changing}\n"})


def test_edits_are_followed_as_the_tools_make_them_and_nothing_else_is() -> None:
    path, library = path_of(0), library_of(0)
    known = library.defects[0]
    edit = {"path": f"./{path}", "old": known.right, "new": known.wrong}
    failed = ToolUse("write_file", {"path": path, "content": "x"}, "refused", is_error=True)
    others = (
        ToolUse("write_file", {"path": f"tests/test_{library.name}.py", "content": ""}),
        ToolUse("write_file", {"path": "../elsewhere.py", "content": ""}),
        ToolUse("replace_text", {"path": path, "old": "nowhere in the module", "new": ""}),
        ToolUse("run_python", {"path": path, "content": "x", "code": "x"}),
        ToolUse("read_file", {"path": path}),
    )
    calls = (failed, *others, ToolUse("replace_text", edit))
    assert changed(0, Transcript((Turn("", calls),))) == {path: planted_text(0)}
    back = ToolUse("replace_text", {"path": path, "old": known.wrong, "new": known.right})
    assert changed(0, Transcript((Turn("", (*calls, back)),))) == {}


async def test_a_failed_repair_leaves_its_own_edits_upon_what_was_planted() -> None:
    library = library_of(0)
    planted_one, other = library.defects[:2]
    task = {"seed": 0, "modules": {path_of(0): planted_text(0)}}
    edit = {"path": f"{library.name}/{other.file}", "old": other.right, "new": other.wrong}
    back = {"path": path_of(0), "old": planted_one.wrong, "new": planted_one.right}

    async def left_by(given: dict[str, str]) -> dict[str, Any]:
        failed = Answer("done", Transcript((Turn("", (ToolUse("replace_text", given),)),)))
        return await mend.generate(7, Parent(task, solved=False, proposal=failed))

    both, right = library.sources([planted_one, other]), library.sources()
    assert await left_by(edit) == {
        "seed": 0,
        "modules": {path: text for path, text in both.items() if text != right[path]},
    }
    with pytest.raises(ScenarioError, match="no module was changed"):
        await left_by(back)


async def test_an_answer_that_plants_nothing_says_why() -> None:
    result, _ = await played(plant, {"seed": 1}, (("list_files", {}),))
    assert (result.score, result.success) == (0.0, False)
    assert "no module was changed" in result.info["reason"]


def test_proposers_are_trained_and_their_repositories_are_none_of_the_benchmark() -> None:
    assert (tasks.split, len(tasks)) == ("train", 40)
    assert {library_of(seed).split for seed in range(40)} == {"train"}
    assert len({task.digest for task in tasks}) == 40
    assert intact(0).files != intact(2).files, "other visible tests of one repository"
