"""Run configuration: protobuf to model and back. The one conversion of planner, trainer, gate and SDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from google.protobuf.message import Message

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.run_config.gate import Gate
from upcycle.run_config.model import RunSpec, Sampling, Training
from upcycle.run_config.names import Channel, Purpose
from upcycle.run_config.policy import PolicyChoice
from upcycle.run_config.refusing import RunConfigInvalid, checked

PURPOSES: Final = {one: common_pb2.Purpose.Value(f"PURPOSE_{one.name}") for one in Purpose}
CHANNELS: Final = {one: common_pb2.Channel.Value(f"CHANNEL_{one.name}") for one in Channel}
_SECTIONS: Final = ("sampling", "training", "gate")


def spec_from_wire(message: taskset_pb2.RunSpec) -> RunSpec:
    """With every default filled in. Raises RunConfigInvalid, naming fields as `spec.training.steps`."""
    given = _given(message)
    given["policy"] = _policy(message.policy)
    given["purpose"] = _choice(PURPOSES, message.purpose, "spec.purpose")
    given["group_size"] = message.group_size  # no default on the wire: an evaluation has other ones
    for name in _SECTIONS:
        if message.HasField(name):
            given[name] = _given(getattr(message, name))
    given.setdefault("taskset", "")
    return checked(RunSpec, given, "spec.{}".format)


def spec_to_wire(spec: RunSpec) -> taskset_pb2.RunSpec:
    """Explicit in every field."""
    return taskset_pb2.RunSpec(
        taskset=spec.taskset,
        purpose=PURPOSES[spec.purpose],
        policy=policy_to_wire(spec.policy),
        group_size=spec.group_size,
        sampling=sampling_to_wire(spec.sampling),
        training=None if spec.training is None else training_to_wire(spec.training),
        gate=None if spec.gate is None else taskset_pb2.GateConfig(**_values(spec.gate)),
        label=spec.label,
        episode_deadline_s=spec.episode_deadline_s,
        source_runs=spec.source_runs,
        no_sampling=spec.no_sampling,
        trainable=spec.trainable,
        max_concurrent=spec.max_concurrent,
        against_version=spec.against_version,
        families=spec.families,
        draws=spec.draws,
        track=spec.track,
        stop_on=spec.stop_on,
        mix=spec.mix,
        sessions=spec.sessions,
        sessions_idle_s=spec.sessions_idle_s,
    )


def policy_to_wire(policy: PolicyChoice) -> common_pb2.PolicySelector:
    """A pinned version, or a channel."""
    if policy.channel is None:
        return common_pb2.PolicySelector(model=policy.model, pinned_version=policy.pinned_version or 0)
    return common_pb2.PolicySelector(model=policy.model, channel=CHANNELS[policy.channel])


def sampling_from_wire(message: taskset_pb2.SamplingConfig) -> Sampling:
    """With every default filled in. Raises RunConfigInvalid."""
    return checked(Sampling, _given(message), "spec.sampling.{}".format)


def sampling_to_wire(sampling: Sampling) -> taskset_pb2.SamplingConfig:
    """The inverse of `sampling_from_wire`."""
    return taskset_pb2.SamplingConfig(**_values(sampling))


def training_to_wire(training: Training) -> taskset_pb2.TrainingConfig:
    """In steps or in epochs, as it was asked for."""
    values = _values(training)
    del values["epochs" if training.epochs is None else "steps"]
    return taskset_pb2.TrainingConfig(**values)


def gate_from_wire(message: taskset_pb2.GateConfig) -> Gate:
    """With every default filled in. Raises RunConfigInvalid."""
    return checked(Gate, _given(message), "spec.gate.{}".format)


def _policy(message: common_pb2.PolicySelector) -> dict[str, Any]:
    given: dict[str, Any] = {"model": message.model}
    if message.WhichOneof("at") == "pinned_version":
        given["pinned_version"] = message.pinned_version
    elif message.channel != common_pb2.CHANNEL_UNSPECIFIED:
        given["channel"] = _choice(CHANNELS, message.channel, "spec.policy.channel")
    return given


def _given(message: Message) -> dict[str, Any]:
    """The fields of a message that were set, as plain values; zero is a value, absence is not."""
    return {
        field.name: _plain(value) for field, value in message.ListFields() if not isinstance(value, Message)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return value if isinstance(value, str | int | float) else tuple(value)


def _values(part: Any) -> dict[str, Any]:
    return {one.name: getattr(part, one.name) for one in fields(part)}


def _choice(table: Mapping[Any, int], number: int, field: str) -> Any:
    for value, wire in table.items():
        if wire == number:
            return value
    raise RunConfigInvalid([f"{field} is {number}; use {' or '.join(name.value for name in table)}"])
