"""Which task a line of `upcycle train --sft` names: the one of the taskset, or the line is refused."""

import json
from pathlib import Path

import pytest

from upcycle.cli.sft import SftCall, SftOptions, SftRefused, conversations_in, train_sft
from upcycle.task_rows import EnvironmentRef, Task

MESSAGES = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
GOOD = {"messages": MESSAGES}
TASK = Task(EnvironmentRef("desk"), "close", '{"deep":{"b":[1,2.5],"a":"é"},"n":7}')


def line_of(task: str) -> str:
    return f'{{"messages": {json.dumps(MESSAGES)}, "task": {task}}}'


def digest_of(tmp_path: Path, line: str) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n")
    first, second = conversations_in(path)
    assert first.task == ""
    return str(second.task)


@pytest.mark.parametrize(
    "args",
    [
        '{"n": 7, "deep": {"a": "é", "b": [1, 2.5]}}',
        '{"deep": {"b": [1.0, 25e-1], "a": "\\u00e9"}, "n": 7.0}',
        '{ "n" : 70e-1, "deep" : {"a":"\\u00e9","b":[1,2.50]} }',
    ],
)
def test_another_spelling_of_the_arguments_is_the_same_task(tmp_path: Path, args: str) -> None:
    line = line_of(f'{{"environment": "desk", "scenario": "close", "args": {args}}}')
    assert digest_of(tmp_path, line) == TASK.digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (SftOptions(sft=Path("d.jsonl"), observation_weight=1.5), "--observation-weight is 1.5"),
        (SftOptions(sft=Path("d.jsonl"), observation_weight=float("nan")), "--observation-weight is nan"),
        (SftOptions(sft_from="run-1", observation_weight=0.3), "goes with --sft FILE"),
    ],
)
async def test_an_observation_weight_that_cannot_be_is_refused(options: SftOptions, said: str) -> None:
    with pytest.raises(SftRefused, match=said):
        await train_sft("m", options, SftCall())


def test_a_task_without_arguments_and_one_with_none_are_one(tmp_path: Path) -> None:
    plain = Task(EnvironmentRef("desk"), "close").digest
    assert digest_of(tmp_path, line_of('{"environment": "desk", "scenario": "close"}')) == plain
    assert digest_of(tmp_path, line_of('{"environment": "desk", "scenario": "close", "args": {}}')) == plain


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("[]", "arguments are of type list, not an object"),
        ('[{"n": 7}]', "arguments are of type list, not an object"),
        ('"{\\"n\\": 7}"', "arguments are of type str, not an object"),
        ('""', "arguments are of type str, not an object"),
        ("0", "arguments are of type int, not an object"),
        ("false", "arguments are of type bool, not an object"),
        ("null", "arguments are of type NoneType, not an object"),
        ('{"n": NaN}', "JSON cannot carry this"),
        ('{"n": 1e999}', "JSON cannot carry this"),
        ('{"n": "\\ud800"}', "JSON cannot carry this"),
        ('{"n": %s}' % ("[" * 200 + "]" * 200), "nested 200 deep, limit 100"),
        ('{"n": "%s"}' % ("x" * 70_000), "limit 65536"),
        ('{"n": 7, "n": 8}', "'n' is there twice"),
        ('{"n": %s}' % ("7" * 5000), "is not JSON"),
    ],
)
def test_arguments_that_no_taskset_holds_are_refused_by_their_line(
    tmp_path: Path, args: str, said: str
) -> None:
    """They would be compared with nothing, and what is held out would train."""
    line = line_of(f'{{"environment": "desk", "scenario": "close", "args": {args}}}')
    with pytest.raises(SftRefused, match=rf"^data\.jsonl:2.*{said}"):
        digest_of(tmp_path, line)


@pytest.mark.parametrize(
    "task", ['{"environment": "", "scenario": "close"}', '{"environment": "desk", "scenario": "\\n"}']
)
def test_a_name_that_is_none_is_refused_by_its_line(tmp_path: Path, task: str) -> None:
    with pytest.raises(SftRefused, match=r"^data\.jsonl:2: `task` is none: .* is not printable text"):
        digest_of(tmp_path, line_of(task))


@pytest.mark.parametrize("name", ["tasks", "task_digest", "taskDigest", "Task", "TASK_DIGEST"])
def test_a_field_that_is_almost_the_task_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SftRefused, match=f"^data.jsonl:2 has a field '{name}'; the field .* is `task`"):
        digest_of(tmp_path, json.dumps({**GOOD, name: "0" * 64}))
