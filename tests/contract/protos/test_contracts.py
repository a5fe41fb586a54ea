"""proto/ keeps the house style, the generated code matches it, and nothing that was released changes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
from docs import asyncapi
from google.protobuf import descriptor_pb2

from episodes import endings

ROOT = Path(__file__).resolve().parents[3]
PROTO = ROOT / "proto"
RELEASED = PROTO / "released" / "v1.binpb"
FILES = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "upcycle").rglob("*.proto"))


def protoc(*arguments: str) -> None:
    """Run the pinned compiler on every contract."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *arguments, *FILES]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where protoc-gen-mypy lies
    subprocess.run(
        command, cwd=PROTO, check=True, capture_output=True, timeout=60, env={**os.environ, "PATH": path}
    )


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorSet:
    """Descriptors of what is in the tree."""
    out = tmp_path_factory.mktemp("descriptors") / "current.binpb"
    protoc(f"--descriptor_set_out={out}")
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def messages(
    owner: descriptor_pb2.FileDescriptorProto | descriptor_pb2.DescriptorProto, prefix: str
) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
    """Every message, nested ones too, by full name."""
    nested = (
        owner.message_type if isinstance(owner, descriptor_pb2.FileDescriptorProto) else owner.nested_type
    )
    for message in nested:
        name = f"{prefix}.{message.name}"
        yield name, message
        yield from messages(message, name)


def all_messages(files: descriptor_pb2.FileDescriptorSet) -> dict[str, descriptor_pb2.DescriptorProto]:
    """Of the whole set."""
    return {name: message for file in files.file for name, message in messages(file, file.package)}


def all_enums(files: descriptor_pb2.FileDescriptorSet) -> dict[str, descriptor_pb2.EnumDescriptorProto]:
    """Top-level enums of the set."""
    return {f"{file.package}.{enum.name}": enum for file in files.file for enum in file.enum_type}


def test_generated_code_is_what_the_compiler_makes_of_proto(tmp_path: Path) -> None:
    protoc(
        f"--python_out={tmp_path}",
        f"--grpc_python_out={tmp_path}",
        f"--mypy_out=quiet:{tmp_path}",
        f"--mypy_grpc_out=quiet:{tmp_path}",
    )
    fresh = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*")}
    committed_root = ROOT / "libs"
    committed = {
        path.relative_to(committed_root): path.read_text()
        for path in (committed_root / "upcycle" / "api").rglob("*_pb2*.py*")
        if "__pycache__" not in path.parts
    }
    different = sorted(
        str(name) for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )
    assert different == [], "run `make proto` and commit the result"


def test_folder_package_and_version_agree(current: descriptor_pb2.FileDescriptorSet) -> None:
    for file in current.file:
        if file.name.startswith("google/"):
            continue
        assert file.package == str(Path(file.name).parent).replace("/", ".")
        assert file.package.endswith(".v1")


def test_enum_zero_is_unspecified_and_values_carry_the_enum_name(
    current: descriptor_pb2.FileDescriptorSet,
) -> None:
    for name, enum in all_enums(current).items():
        short = name.rsplit(".", 1)[1]
        prefix = "".join(
            f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(short)
        ).upper()
        assert enum.value[0].number == 0, name
        assert enum.value[0].name == f"{prefix}_UNSPECIFIED", name
        assert all(value.name.startswith(f"{prefix}_") for value in enum.value), name


def test_each_rpc_has_its_own_request_and_response(current: descriptor_pb2.FileDescriptorSet) -> None:
    seen: set[str] = set()
    for file in current.file:
        for service in file.service:
            assert service.name.endswith("Service")
            for method in service.method:
                request, response = (
                    name.rsplit(".", 1)[1] for name in (method.input_type, method.output_type)
                )
                assert (request, response) == (f"{method.name}Request", f"{method.name}Response")
                assert not {method.input_type, method.output_type} & seen
                seen |= {method.input_type, method.output_type}


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("taskset.v1.EpisodeFailed.kind", endings.EpisodeFailure),
        ("training.v1.GroupSettled.outcome", endings.GroupOutcome),
        ("training.v1.GroupSettled.reason", endings.GroupReason),
        ("training.v1.SessionFailed.kind", endings.SessionFailure),
    ],
)
def test_the_comment_of_a_kind_lists_the_words_that_the_code_sends(field: str, words: type[StrEnum]) -> None:
    listed = asyncapi.proto_comments()[f"upcycle.api.{field}"].split(";")[0]
    assert listed.split(", ") == [word.value for word in words if word]


def breaking_changes(
    before: descriptor_pb2.FileDescriptorSet, after: descriptor_pb2.FileDescriptorSet
) -> list[str]:
    """What a client built against `before` would trip over in `after`."""
    problems = []
    now = all_messages(after)
    for name, message in all_messages(before).items():
        if name not in now:
            problems.append(f"message {name} is gone")
            continue
        fields = {field.number: field for field in now[name].field}
        for field in message.field:
            kept = fields.get(field.number)
            if kept is None or (kept.name, kept.type, kept.label) != (field.name, field.type, field.label):
                problems.append(f"{name}.{field.name} = {field.number} changed")
    enums = all_enums(after)
    for name, enum in all_enums(before).items():
        values = {value.number: value.name for value in enums[name].value} if name in enums else {}
        problems += [f"{name}.{v.name} changed" for v in enum.value if values.get(v.number) != v.name]
    return problems


REMOVED = {"message upcycle.api.registry.v1.GatewaySampled is gone": "no service of any release read it"}
"""What was released and is gone all the same, with why that breaks no client."""


def test_nothing_released_is_removed_or_renumbered(current: descriptor_pb2.FileDescriptorSet) -> None:
    released = descriptor_pb2.FileDescriptorSet.FromString(RELEASED.read_bytes())
    assert set(breaking_changes(released, current)) == REMOVED.keys()


def test_the_breaking_check_sees_a_renumbered_field_and_a_removed_message(
    current: descriptor_pb2.FileDescriptorSet,
) -> None:
    changed = descriptor_pb2.FileDescriptorSet.FromString(current.SerializeToString())
    file = next(file for file in changed.file if file.name.endswith("common/v1/common.proto"))
    file.message_type[0].field[0].number = 99
    del file.message_type[1]
    problems = breaking_changes(current, changed)
    assert any("BlobRef.key" in problem for problem in problems)
    assert any("VersionSpan is gone" in problem for problem in problems)


TRAINING_OPTIONS = (
    "cut_off_episodes",
    "drift_groups",
    "fade_at",
    "fade_steps",
    "guidance",
    "guidance_max_share",
    "kl_success_growth",
    "lr_success_decay",
    "min_spread",
    "new_tasks",
    "new_tasks_difficulty",
    "new_tasks_max_success",
    "new_tasks_min_success",
    "new_tasks_retire_after",
    "new_tasks_share",
    "self_play",
    "self_play_alpha",
    "self_play_order",
    "process_rewards",
    "reward_schedule",
    "single_sessions",
    "solved_groups",
    "stale_after",
    "task_sampler",
    "turn_credit",
    "turn_discount",
    "turn_reward_weight",
)
NEGOTIATED = {
    "upcycle.api.environment.v1.CallToolRequest.limit_s": "sent where OpenResponse.limits_calls says so",
    "upcycle.api.taskset.v1.ClaimTasksRequest.source_run_ids": "the trainer is upgraded after the planner",
    "upcycle.api.taskset.v1.GetTasksetRequest.with_summaries": "of people: an older planner refuses it",
    "upcycle.api.taskset.v1.ListRunsRequest.asked_for": "of people's programs: an older planner refuses it",
    "upcycle.api.taskset.v1.ListTasksetsRequest.with_summaries": "of people: an older planner refuses it",
    "upcycle.api.taskset.v1.RunSpec.max_concurrent": "of people's programs: an older planner refuses it",
    **{
        f"upcycle.api.taskset.v1.RunSpec.{name}": "of people's programs: an older planner refuses it"
        for name in ("track", "stop_on", "mix", "sessions", "sessions_idle_s")
    },
    "upcycle.api.trajectory.v1.GetLedgerRequest.episode_ids": "the planner is upgraded after the ledger",
    **{
        f"upcycle.api.trajectory.v1.TrajectoryFilter.{name}": "of people: an older store refuses it"
        for name in ("family", "max_reward", "failure_kind", "version")
    },
    **{
        f"upcycle.api.trajectory.v1.TrajectoryFilter.{name}": "of new runs: an older store refuses it"
        for name in ("recorded_sessions", "session_group", "graded_since", "graded_before", "labels")
    },
    **{
        f"upcycle.api.taskset.v1.RunSpec.{name}": "of the gate: an older planner refuses it"
        for name in ("against_version", "draws", "families")
    },
    **{
        f"upcycle.api.taskset.v1.{name}": "of people's programs, which are upgraded after the planner"
        for name in (
            "GateConfig.by_shadow",
            "GateConfig.critical",
            "GateConfig.require_review",
            "SamplingConfig.context",
            *(f"TrainingConfig.{option}" for option in TRAINING_OPTIONS),
        )
    },
    **{
        f"upcycle.api.registry.v1.EngineLease.{name}": "supervisors are upgraded after the registry"
        for name in ("held_policies", "max_held", "pinned_versions", "hold_failures")
    },
    **{
        f"upcycle.api.training.v1.{name}": "of people's programs that ask for more than the default"
        for name in (
            "ForwardBackwardRequest.logprobs",
            "Loss.normalize",
            "OptimStepRequest.persist",
            "StepRequest.persist",
        )
    },
    "upcycle.api.training.v1.Conversation.observation_weight": "as TrainingInput.task_digest",
    "upcycle.api.training.v1.TrainingInput.task_digest": "of people's programs: an older trainer refuses it",
}
"""Fields that requests have since the last release, and why no server of that release gets them, though both
versions run during an upgrade: it would refuse the request."""


def asked(files: descriptor_pb2.FileDescriptorSet) -> Iterator[str]:
    """Every message that a request is, or holds, by full name."""
    known = all_messages(files)
    methods = [method for file in files.file for service in file.service for method in service.method]
    waiting, seen = [method.input_type.removeprefix(".") for method in methods], set[str]()
    while waiting:
        name = waiting.pop()
        if name in known and name not in seen:
            seen.add(name)
            waiting += [field.type_name.removeprefix(".") for field in known[name].field]
            yield name


def test_a_new_field_of_a_request_is_not_sent_to_servers_of_the_last_release(
    current: descriptor_pb2.FileDescriptorSet,
) -> None:
    released = descriptor_pb2.FileDescriptorSet.FromString(RELEASED.read_bytes())
    before, now = all_messages(released), all_messages(current)
    new = {
        f"{name}.{field.name}"
        for name in asked(released)
        for field in now[name].field
        if field.name not in {known.name for known in before[name].field}
    }
    assert new == set(NEGOTIATED)
