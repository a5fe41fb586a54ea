"""protobuf <-> domain of interactive training, nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from grpo_trainer.domain.errors import InvalidInput
from grpo_trainer.interactive.inputs import (
    BatchOptions,
    ConversationInput,
    InlineInput,
    Lora,
    Pass,
    RowInput,
    Sample,
    StoredInput,
    TrainingInput,
)
from grpo_trainer.interactive.state import Persist, StepDone, Update
from grpo_trainer.learner.prepared import Adam, DatumValues, LossSpec, MeasuredPass, Normalize
from trajectory_body import body_messages, tool_calls
from upcycle.api.training.v1 import interactive_pb2 as pb
from upcycle.api.training.v1 import service_pb2 as service
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_MAX_WEIGHT: Final = 1e6
_NORMALIZE: Final = {
    pb.NORMALIZE_UNSPECIFIED: Normalize.TOKENS,
    pb.NORMALIZE_TOKENS: Normalize.TOKENS,
    pb.NORMALIZE_SUM: Normalize.SUM,
}
_PERSIST: Final = {
    pb.PERSIST_UNSPECIFIED: Persist.CHECKPOINT,
    pb.PERSIST_CHECKPOINT: Persist.CHECKPOINT,
    pb.PERSIST_WEIGHTS: Persist.WEIGHTS,
    pb.PERSIST_NONE: Persist.NONE,
}
_PERSIST_TO_WIRE: Final = {of: number for number, of in _PERSIST.items() if number}


def pass_from_wire(request: service.ForwardBackwardRequest | service.StepRequest) -> Pass:
    """A forward and backward pass. Raises InvalidInput."""
    return Pass(
        inputs=inputs_from_wire(request.batch),
        options=options_from_wire(request.batch),
        loss=loss_from_wire(request.loss),
        num_substeps=request.num_substeps or 1,
        lora=lora_from_wire(request.lora) if request.HasField("lora") else None,
        logprobs=isinstance(request, service.ForwardBackwardRequest) and request.logprobs,
    )


def loss_from_wire(given: pb.Loss) -> LossSpec:
    """A built-in loss. Raises InvalidInput."""
    normalize = _NORMALIZE.get(given.normalize)
    if normalize is None:
        raise InvalidInput(f"normalize is {given.normalize}; NORMALIZE_TOKENS and NORMALIZE_SUM are known")
    return LossSpec(given.name or LossSpec().name, dict(given.config), normalize)


def forward_from_wire(request: service.ForwardRequest) -> Pass:
    """A forward pass; it has no loss. Raises InvalidInput."""
    return Pass(
        inputs=inputs_from_wire(request.batch),
        options=options_from_wire(request.batch),
        lora=lora_from_wire(request.lora) if request.HasField("lora") else None,
    )


def lora_from_wire(given: pb.LoraOptions) -> Lora:
    """Which parameters train."""
    return Lora(given.rank, given.alpha, given.targets)


def options_from_wire(batch: pb.Batch) -> BatchOptions:
    """How advantages are computed. Raises InvalidInput."""
    return BatchOptions(
        group_size=batch.group_size if batch.HasField("group_size") else None,
        reward_scale=batch.reward_scale if batch.HasField("reward_scale") else 1.0,
        advantage=batch.advantage or BatchOptions().advantage,
    )


def inputs_from_wire(batch: pb.Batch) -> tuple[TrainingInput, ...]:
    """Inputs in their order. Raises InvalidInput, naming the one that cannot be read."""
    return tuple(_input(number, message) for number, message in enumerate(batch.inputs))


def _input(number: int, message: pb.TrainingInput) -> TrainingInput:
    reward = message.reward if message.HasField("reward") else None
    if message.WhichOneof("input") == "trajectory_id" and message.trajectory_id:
        if message.task_digest:
            raise InvalidInput(f"{message.trajectory_id} is a stored trajectory: leave task_digest out")
        return StoredInput(message.trajectory_id, reward)
    brought = _brought(number, message, reward)
    if message.task_digest and not _DIGEST.fullmatch(message.task_digest):
        raise InvalidInput(
            f"{brought.name}: task_digest {message.task_digest!r:.80} is not a sha256 in 64 hex digits"
        )
    return replace(brought, task=message.task_digest)


def _brought(
    number: int, message: pb.TrainingInput, reward: float | None
) -> InlineInput | ConversationInput | RowInput:
    kind = message.WhichOneof("input")
    if kind == "trajectory":
        return _inline(number, message.trajectory, reward)
    if kind == "conversation":
        return _conversation(number, message.conversation)
    if kind == "row":
        return _row(number, message.row, reward)
    raise InvalidInput(
        f"input {number} is empty: give a trajectory id, a trajectory, a conversation or a row"
    )


def _inline(number: int, given: pb.InlineTrajectory, reward: float | None) -> InlineInput:
    samples = tuple(
        Sample(list(one.prompt_token_ids), list(one.output_token_ids), list(one.output_logprobs))
        for one in given.samples
    )
    return InlineInput(given.name or f"input {number}", samples, given.temperature or 1.0, reward)


def _row(number: int, given: pb.TokenRow, reward: float | None) -> RowInput:
    return RowInput(
        name=given.name or f"input {number}",
        token_ids=list(given.token_ids),
        weights=list(given.weights),
        logprobs=list(given.sampling_logprobs),
        advantages=list(given.advantages),
        temperature=given.temperature or 1.0,
        reward=reward,
    )


def _conversation(number: int, given: pb.Conversation) -> ConversationInput:
    name = given.name or f"input {number}"
    if not 0.0 <= given.observation_weight <= _MAX_WEIGHT:
        raise InvalidInput(
            f"{name}: observation_weight is {given.observation_weight:g}; use 0 to {_MAX_WEIGHT:g}"
        )
    return ConversationInput(
        name=name,
        messages=tuple(map(_message, given.messages)),
        tools=_tools(name, given.tools_json),
        weight=given.weight or 1.0,
        last_turn_only=given.last_turn_only,
        observation_weight=given.observation_weight,
    )


def conversation_of_body(body: trajectory.TrajectoryBody) -> ConversationInput:
    """What was said in an episode that a client played: it has no tokens. Raises InvalidInput."""
    name = body.episode.trajectory_id
    for at, turn in enumerate(body.turns):
        if turn.parse_error:
            raise InvalidInput(
                f"{name}: turn {at} could not be read ({turn.parse_error[:200]}), and the conversation would "
                "teach it; leave the trajectory out"
            )
    return ConversationInput(
        name=name,
        messages=tuple(body_messages(body)),
        tools=_tools(name, body.tools_json),
        weight=1.0,
        last_turn_only=False,
        task=body.episode.task_digest,
    )


def _tools(name: str, tools_json: str) -> tuple[Mapping[str, Any], ...]:
    try:
        tools = json.loads(tools_json or "[]")
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name}: tools_json is not JSON: {error}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidInput(f"{name}: tools_json is not a list of objects")
    return tuple(tools)


def _message(message: trajectory.Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = tool_calls(message.tool_calls)
    for name in ("tool_call_id", "name"):
        if getattr(message, name):
            plain[name] = getattr(message, name)
    return plain


def update_from_wire(request: service.OptimStepRequest) -> Update:
    """An optimizer step. Raises InvalidInput."""
    return replace(update_of_step(request), gradients=tuple(request.gradients))


def update_of_step(request: service.OptimStepRequest | service.StepRequest) -> Update:
    """The update of a step, whatever its gradients are. Raises InvalidInput."""
    persist = _PERSIST.get(request.persist)
    if persist is None:
        raise InvalidInput(
            f"persist is {request.persist}; PERSIST_CHECKPOINT, PERSIST_WEIGHTS and PERSIST_NONE are known"
        )
    return Update(adam_from_wire(request.adam), keep_head=request.keep_head, persist=persist)


def adam_from_wire(given: pb.AdamParameters) -> Adam:
    """One update's numbers. Raises InvalidInput."""
    optional = [f.name for f in fields(Adam) if f.name != "learning_rate"]
    chosen = {name: getattr(given, name) for name in optional if given.HasField(name)}  # type: ignore[arg-type]
    return Adam(given.learning_rate, **chosen)


def weights_from_wire(weights: Iterable[pb.TokenValues]) -> list[list[float]]:
    """Weights per datum and token."""
    return [list(one.values) for one in weights]


def datum_to_wire(datum: DatumValues) -> pb.Datum:
    """One row of a forward pass."""
    return pb.Datum(
        reward=datum.reward,
        advantage=datum.advantage,
        input_index=datum.input_index,
        group_index=datum.group_index,
        logprobs=datum.logprobs,
        sampling_logprobs=datum.sampling_logprobs,
        mask=datum.mask,
        token_ids=datum.token_ids,
    )


def measured_to_wire(measured: MeasuredPass) -> service.ForwardBackwardResponse:
    """What a pass measured."""
    return service.ForwardBackwardResponse(
        metrics=finite(measured.metrics),
        num_datums=measured.num_datums,
        logprobs=[pb.TokenValues(values=values) for values in measured.logprobs],
    )


def step_to_wire(done: StepDone) -> pb.OptimStepResult:
    """A durable optimizer step."""
    return pb.OptimStepResult(
        step=done.step,
        version=done.version,
        checkpoint_id=done.checkpoint_id,
        sampler_path=done.sampler_path,
        state_path=done.state_path,
        model=done.model,
        metrics=finite(done.metrics),
        is_head=done.is_head,
        persist=_PERSIST_TO_WIRE[done.persist],
    )


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Plain floats."""
    return {name: float(value) for name, value in metrics.items()}
