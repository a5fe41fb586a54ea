"""Inputs of interactive training: Runs, ids of stored trajectories, and data of the caller, freely mixed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from upcycle.errors import UpcycleError
from upcycle.results import Run
from upcycle.task_rows import Task

if TYPE_CHECKING:
    from upcycle.api.training.v1.interactive_pb2 import TrainingInput as WireInput
    from upcycle.api.trajectory.v1.trajectory_pb2 import Message


class InputInvalid(UpcycleError, ValueError):
    """An input of a batch cannot be trained on; the message says which one and why."""

    kind = "input_invalid"


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn: all tokens of its prompt [P], the T sampled tokens [T], and their log-probabilities [T]."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    output_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A graded episode that is not in the trajectory store. temperature: at which it was sampled. task: the
    Task that it is of, or its digest: the trainer refuses a held-out one. Data that names no task is not
    checked, and counted as metrics["without_task"]."""

    samples: Sequence[Sample]
    reward: float
    temperature: float = 1.0
    name: str = ""
    task: Task | str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages (role, content, tool_calls as in chat completions); SFT with loss `cross_entropy` trains the
    assistant's. tools: specs as rendered into the prompt. weight: of each trained token. observation_weight:
    of each token that is not the assistant's; a small model learns to copy from what it reads sooner if these
    train a little, too. task: see Trajectory."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    weight: float = 1.0
    last_turn_only: bool = False
    name: str = ""
    task: Task | str = ""
    observation_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Token ids [T], and per token one weight [T] (for `cross_entropy`), or one advantage [T] and one
    sampling log-probability [T] (for other losses). The first token, and tokens whose weight or advantage is
    0, are not trained. reward: instead of advantages. task: see Trajectory."""

    token_ids: Sequence[int]
    weights: Sequence[float] = ()
    sampling_logprobs: Sequence[float] = ()
    advantages: Sequence[float] = ()
    reward: float | None = None
    temperature: float = 1.0
    name: str = ""
    task: Task | str = ""


@dataclass(frozen=True, slots=True)
class Lora:
    """Train low-rank adapters of this rank while the base weights stay frozen; rank 0: train all weights.

    alpha: adapters are scaled by alpha / rank; 0 means 2 * rank. targets: comma-separated names of layers;
    empty: all linear layers but the output head.
    """

    rank: int
    alpha: float = 0.0
    targets: str = ""


TrainingInput = str | Run | Trajectory | Conversation | TokenRow


def whole_groups(runs: Sequence[Run], group_size: int) -> list[Run]:
    """Drop every group (`group_size` consecutive runs) in which an episode has no reward.

    Raises InputInvalid if the number of runs is no multiple of group_size.
    """
    if group_size < 1 or len(runs) % group_size:
        raise InputInvalid(f"{len(runs)} runs are not whole groups of {group_size}")
    groups = [runs[first : first + group_size] for first in range(0, len(runs), group_size)]
    return [run for group in groups if not any(run.is_error for run in group) for run in group]


def input_to_wire(given: TrainingInput) -> "WireInput":
    """Convert one input to protobuf. Raises InputInvalid."""
    from upcycle.api.training.v1 import interactive_pb2 as pb

    match given:
        case str():
            return pb.TrainingInput(trajectory_id=given)
        case Run():
            if given.is_error:
                raise InputInvalid(
                    f"run {given.trace_id} has no reward: {given.failure}",
                    "leave its group out; upcycle.train.whole_groups does",
                )
            if not given.trace_id:
                raise InputInvalid(
                    f"run {given.episode_id} has no trajectory in the store: no platform kept it",
                    "evaluate where a platform is found, or train on its file: `upcycle train MODEL --sft`",
                )
            return pb.TrainingInput(trajectory_id=given.trace_id, reward=given.reward)
        case Trajectory():
            return _trajectory(given)
        case Conversation():
            return pb.TrainingInput(conversation=_conversation(given), task_digest=digest_of(given.task))
        case TokenRow():
            return _row(given)
    raise InputInvalid(
        f"{type(given).__name__} cannot be trained on",
        "give Runs, trajectory ids, Trajectory, Conversation or TokenRow objects",
    )


def _trajectory(given: Trajectory) -> "WireInput":
    from upcycle.api.training.v1 import interactive_pb2 as pb

    samples = [
        pb.InlineSample(
            prompt_token_ids=sample.prompt_token_ids,
            output_token_ids=sample.output_token_ids,
            output_logprobs=sample.output_logprobs,
        )
        for sample in given.samples
    ]
    inline = pb.InlineTrajectory(samples=samples, name=given.name, temperature=given.temperature)
    return pb.TrainingInput(trajectory=inline, reward=given.reward, task_digest=digest_of(given.task))


def digest_of(task: Task | str) -> str:
    """Of the task that an input names; empty where it names none."""
    return task.digest if isinstance(task, Task) else task


def _row(given: TokenRow) -> "WireInput":
    from upcycle.api.training.v1 import interactive_pb2 as pb

    row = pb.TokenRow(
        token_ids=given.token_ids,
        weights=given.weights,
        sampling_logprobs=given.sampling_logprobs,
        advantages=given.advantages,
        temperature=given.temperature,
        name=given.name,
    )
    return pb.TrainingInput(row=row, reward=given.reward, task_digest=digest_of(given.task))


def _conversation(given: Conversation) -> Any:
    from upcycle.api.training.v1 import interactive_pb2 as pb

    return pb.Conversation(
        messages=[message_to_wire(given.name, at, message) for at, message in enumerate(given.messages)],
        tools_json=json.dumps(list(given.tools)) if given.tools else "",
        name=given.name,
        weight=given.weight,
        last_turn_only=given.last_turn_only,
        observation_weight=given.observation_weight,
    )


def message_to_wire(name: str, at: int, message: Mapping[str, Any]) -> "Message":
    """A message. name, at: of its conversation, and its place there. Raises InputInvalid."""
    from upcycle.api.trajectory.v1 import trajectory_pb2

    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise InputInvalid(
            f"{name or 'a conversation'}: message {at} needs a role and text content, got role {role!r} and "
            f"content of type {type(content).__name__}"
        )
    return trajectory_pb2.Message(
        role=role,
        content=content or "",
        tool_calls=[_call(call) for call in message.get("tool_calls") or ()],
        tool_call_id=message.get("tool_call_id", ""),
        name=message.get("name", ""),
    )


def _call(call: Mapping[str, Any]) -> Any:
    from upcycle.api.trajectory.v1 import trajectory_pb2

    function = call.get("function", call)
    arguments = function.get("arguments", {})
    return trajectory_pb2.ToolCall(
        call_id=call.get("id", ""),
        name=function["name"],
        arguments_json=arguments if isinstance(arguments, str) else json.dumps(arguments),
    )
