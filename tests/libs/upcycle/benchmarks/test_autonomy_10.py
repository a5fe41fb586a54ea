"""Every task of autonomy-10 is solved by its reference alone, and by none of the cheap ways to seem to."""

import copy
import json
from typing import Any

import pytest
from tests.libs.upcycle.benchmarks.autonomy_cheats import cheats_of

from upcycle import EvaluationResult
from upcycle.benchmarks.autonomy_10.apps import desktop
from upcycle.benchmarks.autonomy_10.baseline import FILE, family_of, played, rewards
from upcycle.benchmarks.autonomy_10.categories import CATEGORIES
from upcycle.benchmarks.autonomy_10.env import NUM_TASKS, drawn, env, work
from upcycle.benchmarks.autonomy_10.errors import ActionRefused
from upcycle.benchmarks.autonomy_10.grading import grade, same
from upcycle.benchmarks.autonomy_10.machine.facts import facts_of
from upcycle.benchmarks.autonomy_10.machine.state import Computer, Mail
from upcycle.benchmarks.autonomy_10.players import PLAYERS
from upcycle.benchmarks.autonomy_10.problems import Calls, ComputerProblem, Goal, Want
from upcycle.benchmarks.autonomy_10.shell.running import run
from upcycle.benchmarks.autonomy_10.tasks import tasks
from upcycle.checking import MAX_CHEAT
from upcycle.errors import TasksetInvalid, ToolFailed, UpcycleError
from upcycle.tasks import Taskset

ONE_OF_EACH = range(len(CATEGORIES))
ALL = range(NUM_TASKS)


def done(problem: ComputerProblem, calls: Calls) -> EvaluationResult:
    """The reward of calls, without the environment between."""
    machine = copy.deepcopy(problem.machine)
    for name, given in calls:
        try:
            if name == "shell":
                run(machine, given["command"])
            else:
                getattr(desktop, name)(machine, *given.values())
        except ActionRefused:
            continue
    return grade(problem.goals, problem.machine, machine)


@pytest.mark.parametrize("number", ALL)
def test_the_reference_earns_1_in_20_to_40_calls(number: int) -> None:
    problem = drawn(number)
    result = done(problem, problem.calls())
    assert (result.score, result.success, result.info) == (1.0, True, {"gone": [], "touched": []})
    assert 20 <= len(problem.calls()) <= 40


@pytest.mark.parametrize("number", ONE_OF_EACH)
async def test_so_it_does_through_the_tools(number: int) -> None:
    result = await played(number, drawn(number).calls())
    assert (result.score, result.success) == (1.0, True)


@pytest.mark.parametrize("number", ALL)
def test_no_cheat_earns_more_than_a_twentieth(number: int) -> None:
    problem = drawn(number)
    for name, calls in cheats_of(problem).items():
        result = done(problem, calls)
        assert result.score <= MAX_CHEAT, (name, result)
        assert not result.success, name


@pytest.mark.parametrize("number", ALL)
def test_every_part_of_the_reference_is_needed_and_what_is_done_of_it_counts(number: int) -> None:
    """A task without its first, or without its last part earns something, and less than all."""
    problem = drawn(number)
    acting = [deed for deed in problem.deeds if deed.changes]
    for left_out in (acting[0], acting[-1]):
        result = done(problem, tuple(call for deed in acting if deed is not left_out for call in deed.calls))
        assert result.score < 1, left_out
        assert not result.success
    most = done(problem, tuple(call for deed in acting[:-1] for call in deed.calls))
    assert most.score >= 0.5


@pytest.mark.parametrize("number", ALL)
def test_everything_that_is_asked_for_is_different_at_the_beginning(number: int) -> None:
    problem = drawn(number)
    before = facts_of(problem.machine)
    for goal in problem.goals:
        for want in goal.wants:
            found = before.get(want.thing)
            if want.attributes is None:
                assert found is not None, want
            else:
                assert found is None or any(
                    not same(found[name], value) for name, value in want.attributes.items()
                ), want


@pytest.mark.parametrize("number", ALL)
def test_a_task_is_the_same_each_time_and_its_prompt_gives_nothing_away(number: int) -> None:
    one, other = drawn(number), drawn(number)
    assert json.dumps(one.machine.as_json()) == json.dumps(other.machine.as_json())
    assert (one.text, one.goals, one.deeds) == (other.text, other.goals, other.deeds)
    values = {
        value for goal in one.goals for want in goal.wants for value in (want.attributes or {}).values()
    }
    assert not [value for value in values if len(value) > 3 and value in one.text]


def test_tasks_of_one_category_differ() -> None:
    assert len({json.dumps(drawn(number).machine.as_json()) for number in ALL}) == NUM_TASKS


def test_the_tasks_are_held_out_and_of_all_categories() -> None:
    assert tasks.split == "held_out"
    assert len(tasks) == NUM_TASKS == 12 * len(CATEGORIES)
    assert {task.family for task in tasks} == {one.name for one in CATEGORIES}
    with pytest.raises(TasksetInvalid, match="is of benchmark autonomy-10; its tasks only measure"):
        Taskset("mine", tasks.tasks[:2], "train")


async def test_a_number_beyond_the_tasks_is_refused() -> None:
    with pytest.raises(UpcycleError, match=f"autonomy-10 has no task {NUM_TASKS}"):
        await work.play({"number": NUM_TASKS}).start()


# what counts: four messages of which two are to move, the others stay
def _inbox() -> Computer:
    machine = Computer(mail_folders=["Inbox", "Bills", "Trash"])
    for number in range(6):
        machine.receive(Mail("a@b.c", "me", f"mail {number}", "text"))
    return machine


GOALS = (
    Goal("bills", (Want("mail:m01", {"folder": "Bills"}), Want("mail:m02", {"folder": "Bills"}))),
    Goal("note", (Want("note:Bills", {"text": "2"}),), needs=("bills",)),
)


@pytest.mark.parametrize(
    ("moved", "note", "reward"),
    [
        ({}, "", 0.0),
        ({"m01": "Bills", "m02": "Bills"}, "2", 1.0),
        ({"m01": "Bills", "m02": "Bills"}, "", 0.5),
        ({"m01": "Bills", "m02": "Bills"}, "3", 0.5),
        ({"m01": "Bills"}, "", 0.25),
        ({"m01": "Bills"}, "2", 0.5),  # the note counts as far as what it needs
        ({}, "2", 0.0),
        ({"m01": "Bills", "m02": "Trash"}, "", 0.0),  # wrong counts twice
        ({"m01": "Bills", "m02": "Bills", "m03": "Bills"}, "2", 0.75),
        ({"m01": "Bills", "m02": "Bills", "m03": "Trash", "m04": "Trash"}, "2", 0.5),
        ({f"m0{number}": "Bills" for number in range(1, 7)}, "2", 0.0),
    ],
)
def test_the_reward_is_what_is_right_less_what_was_damaged(
    moved: dict[str, str], note: str, reward: float
) -> None:
    left = _inbox()
    for name, folder in moved.items():
        left.mails[name].folder = folder
    left.notes = {"Bills": note} if note else {}
    assert grade(GOALS, _inbox(), left).score == reward


def test_what_is_gone_and_was_to_stay_costs_everything_and_scratch_files_nothing() -> None:
    left = _inbox()
    left.mails["m01"].folder = left.mails["m02"].folder = "Bills"
    left.notes = {"Bills": "2"}
    left.put("/tmp/mine.txt", "scratch")
    left.put("/home/ana/empty", None)
    assert grade(GOALS, _inbox(), left).score == 1.0
    del left.mails["m06"]
    result = grade(GOALS, _inbox(), left)
    assert (result.score, result.info["gone"]) == (0.0, ["mail:m06"])


HOSTILE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("shell", {"command": 7}, "command"),
    ("shell", {"command": "x" * (1 << 20)}, "the command has 1,048,576 characters; at most 20,000"),
    ("shell", {}, "command"),
    ("shell", {"command": "echo $(cat /etc/passwd)"}, "this shell has no variables and no substitutions"),
    ("shell", {"command": "python -c 1"}, "python: command not found; help names those that there are"),
    ("shell", {"command": "echo 'open"}, "a ' is not closed"),
    ("shell", {"command": "echo a > ../../../nowhere/x"}, "there is no folder /nowhere"),
    ("shell", {"command": "grep '(a+)+$' /tmp"}, "a repetition of a repetition"),
    ("screen", {"x": 1}, "x"),
    ("open_app", {"name": "terminal"}, "there is no app 'terminal'; there are: mail, calendar"),
    ("open_app", {"name": ["mail"]}, "name"),
    ("click", {"element": "nowhere"}, "there is no element 'nowhere' on the screen; it has nothing"),
    ("type_text", {"element": "to", "text": "y" * (1 << 20)}, "the text has 1,048,576 characters"),
    ("type_text", {"element": "x" * (1 << 20), "text": "y"}, "there is no element"),
)


@pytest.mark.parametrize(("tool", "arguments", "said"), HOSTILE)
async def test_hostile_arguments_are_answered_clearly_and_change_nothing(
    tool: str, arguments: dict[str, Any], said: str
) -> None:
    play = work.play({"number": 0})
    await play.start()
    try:
        result = await env.call_tool(tool, arguments)
        text = result.text
    except ToolFailed as error:
        text = str(error)
    try:
        assert said in text
        assert len(text) < 3_000
        ended = await play.grade(_answer())
        assert ended.info == {"reason": "nothing was changed"}
    finally:
        await play.close()


def _answer() -> Any:
    from upcycle.transcripts import Answer, Transcript, Turn

    return Answer("", Transcript((Turn(""),)))


def test_the_baseline_in_the_package_is_what_its_players_earn() -> None:
    table = json.loads(FILE.read_text())
    assert (table["anchor"], table["people"]) == ("scripted-5", 0)
    assert [row["player"] for row in table["players"]] == [one.name for one in PLAYERS]
    means = [row["reward"] for row in table["players"]]
    assert means == sorted(set(means))
    assert (means[0], means[-1]) == (0.0, 1.0)
    compared = ONE_OF_EACH
    assert {family_of(number) for number in compared} == {one.name for one in CATEGORIES}
    for player, row in zip(PLAYERS, table["players"], strict=True):
        assert rewards(player, compared) == {str(number): row["rewards"][str(number)] for number in compared}
