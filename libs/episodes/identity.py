"""Which episode something is about: the one value that the planner makes and that later messages copy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from identities.entities import trajectory_id
from identities.tenants import OWN_TENANT
from upcycle.api.common.v1 import common_pb2
from upcycle.run_config import Channel as Channel
from upcycle.run_config import Purpose as Purpose
from upcycle.session_labels import Labels, checked


class Split(StrEnum):
    """Which side of the line a task is on."""

    TRAIN = "train"
    HELD_OUT = "held_out"
    AUDIT = "audit"
    UNASSIGNED = "unassigned"

    @property
    def never_trains(self) -> bool:
        """Held out for the gate, or for audits. An unassigned task may still be put on any side."""
        return self in (Split.HELD_OUT, Split.AUDIT)


class MalformedIdentity(ValueError):
    """A message does not say which episode it is about."""


PURPOSES: Final = {common_pb2.PURPOSE_TRAIN: Purpose.TRAIN, common_pb2.PURPOSE_EVAL: Purpose.EVAL}
SPLITS: Final = {
    common_pb2.SPLIT_TRAIN: Split.TRAIN,
    common_pb2.SPLIT_HELD_OUT: Split.HELD_OUT,
    common_pb2.SPLIT_AUDIT: Split.AUDIT,
    common_pb2.SPLIT_UNASSIGNED: Split.UNASSIGNED,
}
CHANNELS: Final = {
    common_pb2.CHANNEL_LATEST: Channel.LATEST,
    common_pb2.CHANNEL_HEAD: Channel.HEAD,
    common_pb2.CHANNEL_CANDIDATE: Channel.CANDIDATE,
}
PURPOSE_NUMBERS: Final = {purpose: number for number, purpose in PURPOSES.items()}
SPLIT_NUMBERS: Final = {split: number for number, split in SPLITS.items()}
CHANNEL_NUMBERS: Final = {channel: number for number, channel in CHANNELS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeIdentity:
    """See upcycle.api.common.v1.EpisodeIdentity. member: 0 .. group_size - 1. guided_after: the failed
    episode whose task it attempts again with guidance in its prompt; empty: no guidance. taskset: that
    its task is of, with the revision; empty: not known. labels: of a recorded session."""

    episode_id: str
    run_id: str
    group_id: str
    member: int
    group_size: int
    model: str
    purpose: Purpose
    split: Split
    task_slug: str
    task_digest: str
    family: str
    tenant: str = OWN_TENANT
    guided_after: str = ""
    taskset: str = ""
    labels: Labels = ()

    @property
    def trajectory_id(self) -> str:
        """Of the record that the episode has, or will have."""
        return trajectory_id(self.episode_id)


def identity_to_wire(identity: EpisodeIdentity) -> common_pb2.EpisodeIdentity:
    """The message; later services copy it whole with CopyFrom and never take it apart to build another."""
    return common_pb2.EpisodeIdentity(
        tenant=identity.tenant,
        episode_id=identity.episode_id,
        trajectory_id=identity.trajectory_id,
        run_id=identity.run_id,
        group_id=identity.group_id,
        member=identity.member,
        group_size=identity.group_size,
        model=identity.model,
        purpose=PURPOSE_NUMBERS[identity.purpose],
        split=SPLIT_NUMBERS[identity.split],
        task_slug=identity.task_slug,
        task_digest=identity.task_digest,
        family=identity.family,
        guided_after=identity.guided_after,
        taskset=identity.taskset,
        labels=identity.labels,
    )


def identity_from_wire(message: common_pb2.EpisodeIdentity) -> EpisodeIdentity:
    """Raises MalformedIdentity, naming the field and the value that cannot be."""
    _refuse_malformed(message)
    return EpisodeIdentity(
        episode_id=message.episode_id,
        run_id=message.run_id,
        group_id=message.group_id,
        member=message.member,
        group_size=message.group_size,
        model=message.model,
        purpose=PURPOSES[message.purpose],
        split=SPLITS[message.split],
        task_slug=message.task_slug,
        task_digest=message.task_digest,
        family=message.family or "default",
        tenant=message.tenant,
        guided_after=message.guided_after,
        taskset=message.taskset,
        labels=_labels(message),
    )


def _refuse_malformed(message: common_pb2.EpisodeIdentity) -> None:
    for field in ("tenant", "episode_id", "run_id", "group_id", "model", "task_slug", "task_digest"):
        if not getattr(message, field):
            raise MalformedIdentity(f"the message of episode {message.episode_id!r} has no {field}")
    if message.trajectory_id != trajectory_id(message.episode_id):
        raise MalformedIdentity(
            f"trajectory_id is {message.trajectory_id!r}; of episode {message.episode_id} it is "
            f"{trajectory_id(message.episode_id)!r}"
        )
    if not 0 <= message.member < message.group_size:
        raise MalformedIdentity(
            f"member is {message.member} of a group of {message.group_size}; members count from 0"
        )
    if message.purpose not in PURPOSES or message.split not in SPLITS:
        raise MalformedIdentity(
            f"episode {message.episode_id} has purpose {message.purpose} and split {message.split}; "
            "both must be set to a known value"
        )
    if message.guided_after and message.purpose != common_pb2.PURPOSE_TRAIN:
        raise MalformedIdentity(
            f"episode {message.episode_id} of an evaluation is guided, after {message.guided_after}: "
            "guidance is for training alone"
        )


def _labels(message: common_pb2.EpisodeIdentity) -> Labels:
    try:
        return checked(message.labels)
    except ValueError as error:
        raise MalformedIdentity(f"labels of episode {message.episode_id}: {error}") from error
