"""Lines of trajectories files: of stored records, and what SFT takes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.cli.sft import SftRefused, conversations_in
from upcycle.reporting.trajectory_files import TrajectoryLines
from upcycle.task_rows import EnvironmentRef, Task
from upcycle.trajectory_lines.reading import NoTrajectories
from upcycle.trajectory_lines.writing import FORMAT, line_of_record

TASK = Task(EnvironmentRef("desk", path="/desk.py"), "close", '{"n":7}', "close-7")
IDENTITY = common.EpisodeIdentity(
    run_id="run-1",
    episode_id="ep-1",
    trajectory_id="traj-1",
    group_id="g-1",
    model="desk-1",
    task_slug=TASK.slug,
    task_digest=TASK.digest,
    family="desk",
    split=common.SPLIT_TRAIN,
)
TOOLS = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}]


def record(*, graded: bool = True) -> dict[str, Any]:
    """As `upcycle trajectories export --form records` writes it."""
    call = pb.ToolCall(call_id="c0", name="look", arguments_json='{"at": "desk"}')
    turns = [
        pb.Turn(
            text="I look.",
            tool_calls=[call],
            tool_results=[pb.ToolResult(call_id="c0", content="a pen", is_error=True)],
            sampled_ids=[1, 2, 3],
        ),
        pb.Turn(text="pen", sampled_ids=[4, 5]),
    ]
    body = pb.TrajectoryBody(
        episode=IDENTITY,
        prompt=[pb.Message(role="system", content="Be brief."), pb.Message(role="user", content="What?")],
        turns=turns,
        stop_reason=pb.STOP_REASON_ANSWERED,
        answer="pen",
        sampled_by=common.VersionSpan(oldest=0, newest=2),
        tools_json=json.dumps(TOOLS),
        source_digest="ab" * 32,
    )
    exact = pb.Subscore(name="exact", weight=0.5, value=0.25, info="near")
    graders = [pb.Subscore(name="right", weight=1, value=0.25, children=[exact])]
    summary = pb.TrajectorySummary(episode=IDENTITY, graded=graded)
    if graded:
        summary.reward, summary.success = 0.25, True
        summary.subscores.extend(graders)
    plain = [MessageToDict(one, preserving_proto_field_name=True) for one in (body, summary)]
    return {"body": plain[0], "summary": plain[1]}


def played(**changes: Any) -> dict[str, Any]:
    """As an evaluation in one process writes it, shortened."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    line = {"format": FORMAT, "task": TASK.to_json(), "messages": messages, "tools": TOOLS, "turns": []}
    return {**line, "reward": 1.0, "success": True, **changes}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "trajectories.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_stored_record_is_a_line_with_tools_ids_run_and_version() -> None:
    line = line_of_record(record())
    call = {"name": "look", "arguments": {"at": "desk"}, "result": "a pen", "is_error": True}
    assert line["format"] == FORMAT
    assert [line[name] for name in ("run_id", "episode_id", "trajectory_id", "group_id", "agent")] == [
        "run-1",
        "ep-1",
        "traj-1",
        "g-1",
        "desk-1",
    ]
    assert (line["versions"], line["source_digest"]) == ({"oldest": 0, "newest": 2}, "ab" * 32)
    assert line["task"] == {"slug": "close-7", "family": "desk", "digest": TASK.digest, "split": "train"}
    assert line["tools"] == TOOLS
    assert line["turns"] == [{"text": "I look.", "tool_calls": [call]}, {"text": "pen", "tool_calls": []}]
    function = {"name": "look", "arguments": '{"at": "desk"}'}
    assert line["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c0", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "a pen", "tool_call_id": "c0"},
        {"role": "assistant", "content": "pen"},
    ]
    assert (line["reward"], line["success"], line["completion_tokens"]) == (0.25, True, 5)
    assert (line["stop_reason"], line["answer"]) == ("answered", "pen")
    child = {"name": "exact", "weight": 0.5, "value": 0.25, "info": "near", "children": []}
    assert line["subscores"] == [
        {"name": "right", "weight": 1.0, "value": 0.25, "info": "", "children": [child]}
    ]


def test_what_turns_earn_stands_beside_them() -> None:
    rewarded = record()
    rewarded["summary"]["turn_rewards"] = [1.0, 0.5]
    assert [turn["reward"] for turn in line_of_record(rewarded)["turns"]] == [1.0, 0.5]
    rewarded["summary"]["turn_rewards"] = [1.0]  # of another body
    assert all("reward" not in turn for turn in line_of_record(rewarded)["turns"])


def test_a_guided_record_says_after_which_attempt_and_with_which_words() -> None:
    plain = record()
    assert not {"guided_after", "guidance"} & set(line_of_record(plain))
    plain["summary"]["episode"] |= {"guided_after": "ep-0"}
    plain["body"]["guidance"] = "Look in the drawer."
    line = line_of_record(plain)
    assert (line["guided_after"], line["guidance"]) == ("ep-0", "Look in the drawer.")
    assert line["guidance_parts"] == []
    plain["body"]["guidance_parts"] = [{"kind": "hint", "text": "Look in the drawer."}]
    assert line_of_record(plain)["guidance_parts"] == [{"kind": "hint", "text": "Look in the drawer."}]


def test_a_record_says_which_taskset_its_task_is_of_where_that_is_known() -> None:
    row = record()
    assert "taskset" not in line_of_record(row)["task"]
    row["summary"]["episode"] |= {"taskset": "disks@2"}
    assert line_of_record(row)["task"]["taskset"] == "disks@2"


def test_reasoning_and_states_of_a_record_are_apart_in_its_line(tmp_path: Path) -> None:
    row = record()
    first, second = row["body"]["turns"]
    first["reasoning"] = "Where is it?"
    row["body"]["first_state"] = {"value_json": '{"pens":1}'}
    first["tool_results"][0]["state"] = {"patch_json": '[{"op":"replace","path":"/pens","value":2}]'}
    row["body"]["last_state"] = {"note": "left out"}
    line = line_of_record(row)
    assert line["states"] == [
        {"value": {"pens": 1}, "note": ""},
        {"value": {"pens": 2}, "note": ""},
        {"value": None, "note": "left out"},
    ]
    assert [turn.get("reasoning") for turn in line["turns"]] == ["Where is it?", None]
    assert [one["content"] for one in line["messages"] if one["role"] == "assistant"] == [
        "<think>\nWhere is it?\n</think>\n\nI look.",  # what SFT learns
        "pen",
    ]
    assert run(["view", str(written(tmp_path, line)), "-o", str(tmp_path / "run.html")]) == Exit.OK
    page = (tmp_path / "run.html").read_text()
    for part in (
        "Where is it?",
        "States of the environment",
        "state: {&#34;pens&#34;: 2}",
        "state: left out",
    ):
        assert part in page
    assert second["text"] == "pen"


def test_a_record_without_a_grade_has_no_reward() -> None:
    line = line_of_record(record(graded=False))
    assert (line["reward"], line["success"], line["subscores"]) == (None, None, [])


def test_lines_of_the_platform_are_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, line_of_record(record()), line_of_record(record(graded=False)))
    assert run(["view", str(path), "-o", "run.html"]) == Exit.OK
    page = Path("run.html").read_text()
    for part in ("close-7", "desk-1", "a pen", "Be brief.", "run-1"):
        assert part in page


def test_what_succeeded_is_a_conversation_of_its_task(tmp_path: Path) -> None:
    lines = [
        line_of_record(record()),
        played(reward=0.0, success=False),
        played(),
        played(reward=None, success=None),
    ]
    found = list(conversations_in(written(tmp_path, *lines)))
    assert [one.task for one in found] == [TASK.digest, TASK.digest]
    assert [list(one.tools) for one in found] == [TOOLS, TOOLS]
    assert [len(one.messages) for one in found] == [5, 2]
    assert [one.name for one in found] == ["trajectories.jsonl:1", "trajectories.jsonl:3"]


def test_what_had_guidance_in_its_prompt_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    triple = {"prompt": [{"role": "user", "content": "?"}], "completion": played()["messages"][-1:]}
    lines = [played(), played(guided_after="ep-1"), {**triple, "guided_after": "ep-2"}, triple]
    found = list(conversations_in(written(tmp_path, *lines)))
    assert [one.name for one in found] == ["trajectories.jsonl:1", "trajectories.jsonl:4"]
    said = " ".join(capsys.readouterr().err.split())
    assert "2 trajectories" in said
    assert "had guidance in the prompt, which the policy will not have: left out" in said
    with pytest.raises(SftRefused, match="can train: 1 had guidance in the prompt"):
        list(conversations_in(written(tmp_path, lines[1])))


def test_a_conversation_with_a_field_format_is_no_trajectory(tmp_path: Path) -> None:
    line = {"messages": played()["messages"], "format": "chat", "turns": 1}
    (found,) = conversations_in(written(tmp_path, line))
    assert len(found.messages) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (played(reward=0.0, success=False), "none of its 1 trajectory can train: 1 did not succeed"),
        (played(task={**TASK.to_json(), "digest": "0" * 64}), f"has digest {TASK.digest[:12]}"),
        (played(format="upcycle-trajectory/2"), "'upcycle-trajectory/2', and this version reads"),
        (played(task="close-7"), "it has no task"),
        (played(messages="?"), "messages are no list of objects"),
        (played(tools={"look": 1}), "tools are no list of objects"),
        (played(task={"slug": "x", "digest": "elsewhere"}), "`task` is 'elsewhere'"),
        (played(task={**TASK.to_json(), "environment": {"name": ""}}), "its task is none"),
    ],
)
def test_a_line_that_teaches_nothing_is_refused_for_training(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(SftRefused, match=r"trajectories\.jsonl") as refused:
        list(conversations_in(written(tmp_path, line)))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}\n", "trajectories.jsonl:1: no trajectory: it has no task"),
        ("\n[1]\n", "trajectories.jsonl:2: no trajectory"),
        ("{\n{}\n", "trajectories.jsonl:1: not JSON"),
        ('{"task": {}, "format": "other/9"}', "its format is 'other/9'"),
    ],
)
def test_what_is_no_trajectory_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(text)
    with pytest.raises(NoTrajectories) as refused:
        list(TrajectoryLines(path).rows())
    assert said in str(refused.value)
