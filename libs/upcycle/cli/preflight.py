"""What `upcycle train` refuses before it connects: the same rules as the planner's and the trainer's."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from upcycle.api.taskset.v1.taskset_pb2 import GateConfig, TrainingConfig

_FLAGS: Final = {
    "prompts_per_step": "--prompts",
    "checkpoint_every_steps": "--checkpoint-every",
    "group_size": "--group",
    "attempts": "--gate-attempts",
}
"""Flags that are not called like their field."""


class TrainingRefused(UpcycleError, ValueError):
    """The options ask for a training run that cannot be."""

    kind = "training_refused"


def refuse_early(training: "TrainingConfig", group_size: int, gate: "GateConfig | None") -> None:
    """Raises TrainingRefused, naming flags, for names and limits that the planner would refuse."""
    from run_config import gate_refusals, refusals

    refused = refusals(_given(training), group_size=group_size, say=_flag)
    if gate is not None:
        refused += gate_refusals(_given(gate), say=_flag)
    if refused:
        raise TrainingRefused("; ".join(refused))


def _given(message: "Message") -> Mapping[str, Any]:
    """The fields that were set; zero is a value, absence is not."""
    return {field.name: value for field, value in message.ListFields()}


def _flag(field: str) -> str:
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")
