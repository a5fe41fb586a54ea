"""What `upcycle train` refuses before it connects: the same rules as the planner's and the trainer's."""

from collections.abc import Callable, Mapping
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
    refused = refusals_of(training, group_size, gate, say=flag_of)
    if refused:
        raise TrainingRefused("; ".join(refused))


def refusals_of(
    training: "TrainingConfig", group_size: int, gate: "GateConfig | None", *, say: Callable[[str], str]
) -> list[str]:
    """What the planner would refuse of these, one sentence each. say: names a field for its reader."""
    from upcycle.run_config import RunConfigInvalid, RunSpec, checked

    values: dict[str, Any] = {
        "taskset": "t",
        "purpose": "train",
        "policy": {"model": "m"},
        "group_size": group_size,
        "training": _given(training),
        "gate": None if gate is None else _given(gate),
    }
    try:
        checked(RunSpec, values, lambda path: say(path.rpartition(".")[2]))
    except RunConfigInvalid as error:
        return list(error.reasons)
    return []


def _given(message: "Message") -> Mapping[str, Any]:
    """The fields that were set; zero is a value, absence is not."""
    return {field.name: value for field, value in message.ListFields()}


def flag_of(field: str) -> str:
    """The flag of `upcycle train` that sets a field."""
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")
