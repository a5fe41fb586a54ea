"""Tasks and tasksets: content-hashed, unique, immutable, the same from every kind of file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from upcycle import Environment, Task, Taskset
from upcycle.api.common.v1 import common_pb2
from upcycle.environment import load_environment
from upcycle.errors import ArgumentsInvalid, TasksetInvalid, UnknownName
from upcycle.evaluation import as_taskset
from upcycle.task_documents import tasksets_in
from upcycle.tasks import EnvironmentRef, task_digest, taskset_digest
from upcycle.wire import taskset_from_wire, taskset_to_wire


@pytest.fixture
def env(environment_file: Path) -> Environment:
    return load_environment(environment_file)


def test_a_task_is_its_content(env: Environment) -> None:
    investigate = env.scenarios["investigate"]
    one = investigate.task(query="500s", slug="first", family="http")
    assert (one.slug, one.family, one.args, one.scenario) == (
        "first",
        "http",
        {"query": "500s"},
        "investigate",
    )
    assert one.environment == EnvironmentRef("small-incident", path=env.source)
    # printf '%s' '["small-incident","investigate",{"query":"500s"}]' | sha256sum
    assert one.digest == "20cac8ef051fd85fe54275a9cf6d21e7c0d2fca2f9f4f727cee2546c203c0c5d"
    assert investigate(query="500s").digest == one.digest
    assert investigate(query="500s").slug == f"investigate-{one.digest[:12]}"
    assert investigate(query="501s").digest != one.digest
    assert investigate(query="500s", expected="pool").digest != one.digest
    moved = dataclasses.replace(one, environment=EnvironmentRef("small-incident", url="tcp://elsewhere:1"))
    assert moved.digest == one.digest
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.slug = "other"  # type: ignore[misc]


def test_digests_do_not_depend_on_how_arguments_are_written() -> None:
    assert task_digest("e", "s", '{"b": 1, "a": [1, 2]}') == task_digest("e", "s", '{"a":[1,2],"b":1}')
    assert task_digest("e", "s", '{"a": 1}') != task_digest("e", "s", '{"a": "1"}')
    for whole in (7, 2**53, 10**22):
        assert task_digest("e", "s", f'{{"a": [{whole}]}}') == task_digest("e", "s", f'{{"a": [{whole}.0]}}')
    assert task_digest("e", "s", f'{{"a": {2**53}}}') != task_digest("e", "s", f'{{"a": {2**53 + 1}}}')
    assert task_digest("e", "s", '{"a": 0.5}') != task_digest("e", "s", '{"a": 0}')
    assert taskset_digest("train", ["x", "y"]) != taskset_digest("train", ["y", "x"])
    assert taskset_digest("train", ["x"]) != taskset_digest("held_out", ["x"])


def test_arguments_are_checked_where_the_task_is_written(env: Environment) -> None:
    with pytest.raises(ArgumentsInvalid, match="missing argument 'query'"):
        env.scenarios["investigate"].task()
    with pytest.raises(ArgumentsInvalid, match="expected a string, got 3"):
        env.scenarios["investigate"].task(query=3)
    with pytest.raises(TasksetInvalid, match="limit 65536"):
        env.scenarios["investigate"].task(query="x" * 70_000)


@pytest.mark.parametrize(
    "fields",
    [
        {"slug": " "},
        {"slug": "a\nb"},
        {"slug": "x" * 201},
        {"family": ""},
        {"scenario": ""},
        {"args_json": "[]"},
        {"args_json": "{"},
        {"args_json": '{"a": "\\ud800"}'},
        {"args_json": '{"a": 1e999}'},
        {"args_json": '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"},
        {"args_json": '{"a": ' + "[" * 101 + "]" * 101 + "}"},
    ],
)
def test_a_malformed_task_is_refused(fields: dict[str, str]) -> None:
    given = {"slug": "s", "scenario": "sum", **fields}
    with pytest.raises(TasksetInvalid):
        Task(EnvironmentRef("e", path="/e.py"), **given)


def test_arguments_nested_as_deep_as_allowed_are_kept() -> None:
    args_json = '{"a":' + "[" * 100 + "]" * 100 + "}"
    assert Task(EnvironmentRef("e", path="/e.py"), "sum", args_json).args_json == args_json


def test_a_taskset_has_unique_slugs_one_environment_and_a_split(env: Environment) -> None:
    one, two = env.scenarios["investigate"](query="1"), env.scenarios["investigate"](query="2")
    taskset = Taskset("mine", [one, two], split="held_out")
    assert len(taskset) == 2
    assert list(taskset) == [one, two]
    assert taskset.digest == taskset_digest("held_out", [one.digest, two.digest])
    assert Taskset("other name", [one, two], split="held_out").digest == taskset.digest
    elsewhere = dataclasses.replace(two, environment=EnvironmentRef("another", path="/x.py"))
    bad: list[tuple[list[Any], str, str]] = [
        ([one, one], "train", "occurs twice"),
        ([], "train", "0 tasks"),
        ([one, elsewhere], "train", "one taskset per environment"),
        ([one, "two"], "train", "not a Task"),
        ([one], "test", "'train', 'held_out' or 'audit', or 'unassigned'"),
    ]
    for tasks, split, text in bad:
        with pytest.raises(TasksetInvalid, match=text):
            Taskset("mine", tasks, split=split)  # type: ignore[arg-type]
    for name in ("mine@2", "mine@0", "@1"):
        with pytest.raises(TasksetInvalid, match="ends like a revision"):
            Taskset(name, [one])
    assert Taskset("a@b", [one]).name == "a@b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        taskset.split = "train"  # type: ignore[misc]


def test_files_of_every_kind_hold_the_same_taskset(env: Environment, tmp_path: Path) -> None:
    tasks = [env.scenarios["investigate"](query=str(n), slug=f"q{n}") for n in range(3)]
    taskset = Taskset("mine", tasks, split="held_out")
    for name in ("t.json", "t.jsonl"):
        taskset.save(tmp_path / name)
        assert Taskset.load(tmp_path / name) == taskset
        assert Taskset.load(tmp_path / name).digest == taskset.digest
    assert taskset_from_wire(taskset_to_wire(taskset)) == taskset
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps(task.to_json()) + "\n" for task in tasks))
    assert [task.slug for task in Taskset.load(bare)] == ["q0", "q1", "q2"]


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.csv"])
def test_a_folder_with_its_environment_and_tasks_files_may_be_moved(tmp_path: Path, name: str) -> None:
    (tmp_path / "here" / "sub").mkdir(parents=True)
    for place in ("env.py", "sub/env.py"):
        where = EnvironmentRef("shop", path=str(tmp_path / "here" / place))
        taskset = Taskset("t", [Task(where, "ask", slug=f"q{n}") for n in range(2)])
        taskset.save(tmp_path / "here" / name)
        assert str(tmp_path) not in (tmp_path / "here" / name).read_text()
        assert Taskset.load(tmp_path / "here" / name) == taskset
    (tmp_path / "here").rename(tmp_path / "there")
    assert Taskset.load(tmp_path / "there" / name).environment.path == str(tmp_path / "there" / "sub/env.py")


def test_a_relative_path_in_a_tasks_file_begins_at_the_file(tmp_path: Path) -> None:
    header = {"name": "t", "environment": {"name": "shop", "path": "../env.py"}}
    own = {"name": "shop", "path": "deployed:" + "a" * 64}
    (tmp_path / "sub").mkdir()
    for environment, path in ((None, str(tmp_path / "env.py")), (own, own["path"])):
        row = {"scenario": "ask", "slug": "q"} | ({"environment": environment} if environment else {})
        (tmp_path / "sub" / "t.json").write_text(json.dumps({**header, "tasks": [row]}))
        assert Taskset.load(tmp_path / "sub" / "t.json").environment.path == path


def test_an_environment_elsewhere_is_written_with_its_whole_path(tmp_path: Path) -> None:
    for where in (EnvironmentRef("shop", path="/shop/env.py"), EnvironmentRef("shop", url="tcp://h:1")):
        Taskset("mine", [Task(where, "ask")]).save(tmp_path / "t.jsonl")
        assert Taskset.load(tmp_path / "t.jsonl").environment == where


def test_bare_tasks_are_evaluated_as_unassigned(env: Environment, tmp_path: Path) -> None:
    one, two = env.scenarios["investigate"](query="1"), env.scenarios["investigate"](query="2")
    made = as_taskset([one, two])
    assert (made.split, made.name) == ("unassigned", f"adhoc-{made.digest[:12]}")
    assert made.name != as_taskset(one).name
    assert taskset_to_wire(made).split == common_pb2.SPLIT_UNASSIGNED
    assert taskset_from_wire(taskset_to_wire(made)) == made
    made.save(tmp_path / "t.jsonl")
    assert Taskset.load(tmp_path / "t.jsonl").split == "unassigned"
    mine = Taskset("mine", [one])
    assert as_taskset(mine) is mine


def test_a_tasks_py_offers_its_tasksets_tasks_and_lists(environment_file: Path) -> None:
    path = environment_file.parent / "tasks.py"
    path.write_text(
        "from env import env\n"
        "from upcycle import Taskset\n"
        "ask = env.scenarios['investigate']\n"
        "train = Taskset('training', [ask(query='a')])\n"
        "held = [ask(query='b'), ask(query='c')]\n"
    )
    assert [task.args["query"] for task in Taskset.load(path, "training")] == ["a"]
    assert len(Taskset.load(path, "held")) == 2
    with pytest.raises(UnknownName, match="it has held, training"):
        Taskset.load(path)
    with pytest.raises(UnknownName, match="no taskset 'test'"):
        Taskset.load(path, "test")


def test_a_list_that_a_taskset_was_made_of_is_no_second_one_that_trains(environment_file: Path) -> None:
    path = environment_file.parent / "tasks.py"
    path.write_text(
        "from env import env\n"
        "from upcycle import Taskset\n"
        "ask = env.scenarios['investigate']\n"
        "cases = [ask(query='a'), ask(query='b')]\n"
        "held = Taskset('held', cases, 'held_out')\n"
        "first, *rest = cases\n"
        "more = [*rest, ask(query='c')]\n"
    )
    found = tasksets_in(Taskset, path)
    assert {name: (len(one), one.split) for name, one in found.items()} == {
        "held": (2, "held_out"),
        "more": (2, "train"),
    }


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("t.json", "[1]", "not a taskset"),
        ("t.json", "{nope", "not JSON"),
        ("t.json", '{"tasks": [], "colour": 1}', "unknown field 'colour'"),
        ("t.json", '{"tasks": [{"scenario": "s"}]}', "needs 'scenario' and 'environment'"),
        ("t.jsonl", '{"name": "n"}\n{"scenario": "s", "colour": 1}', "unknown field 'colour'"),
        ("t.jsonl", '{"name": "n", "environment": {"name": ""}}\n{"scenario": "s"}', "malformed"),
        ("t.yaml", "", "cannot load a taskset from '.yaml'"),
        ("t.py", "x = 1", "defines no tasks"),
    ],
)
def test_files_that_hold_no_taskset_say_why(tmp_path: Path, name: str, content: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(TasksetInvalid, match=text):
        Taskset.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("t.json", "t.py"):
        with pytest.raises(UnknownName, match="no such file"):
            Taskset.load(tmp_path / name)
