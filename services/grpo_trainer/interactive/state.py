"""Interactive training: parameters of a step, what a call measured, the durable state of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from blob_store import BlobRef
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.states import BasePolicy, SessionState, state_from_json
from grpo_trainer.learner.prepared import Adam
from identities.entities import checkpoint_id


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step. gradients: request ids that must be accumulated. keep_head: do not move head."""

    adam: Adam
    gradients: tuple[str, ...] = ()
    keep_head: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The promoted checkpoint of a model; revision: +1 at each move."""

    base: BasePolicy
    revision: int

    @property
    def checkpoint_id(self) -> str:
        return self.base.checkpoint_id


@dataclass(frozen=True, slots=True)
class InteractiveState:
    """The durable state after an interactive optimizer step.

    manifest, digest: of its published weights, whose version no other step can have. head_revision: of the
    head that the step began from. keep_head: head was to stay where it was. groups: stored groups that the
    weights have trained on, in this step and those before it, by run, see SettledGroups.
    """

    session: SessionState
    manifest: BlobRef
    digest: str
    request_id: str
    head_revision: int
    keep_head: bool
    groups: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sources(self) -> dict[str, int]:
        """How many groups of which run the weights have trained on."""
        return {run_id: len(SettledGroups.from_json(run_id, one)) for run_id, one in self.groups.items()}

    @property
    def checkpoint_id(self) -> str:
        """Of the version that the step produced."""
        return checkpoint_id(self.session.spec.model, self.session.version)

    def is_current(self, head: Head) -> bool:
        """Training goes on from here: head is at this step, or has not moved since the step began, because
        it was meant to stay or because promoting it was cut off."""
        return head.checkpoint_id == self.checkpoint_id or head.revision == self.head_revision

    def is_unpromoted(self, head: Head) -> bool:
        """Head was to move to this step, and has not moved at all since it began."""
        return not self.keep_head and head.revision == self.head_revision

    @property
    def published(self) -> BasePolicy:
        """The version that the step produced."""
        return BasePolicy(self.session.version, self.checkpoint_id, self.manifest)

    def to_json(self) -> dict[str, Any]:
        """Plain values, in a stable order."""
        groups = {"groups": dict(self.groups)} if self.groups else {}  # read back to the bytes of the marker
        return {
            **groups,
            "session": self.session.to_json(),
            "manifest": asdict(self.manifest),
            "digest": self.digest,
            "request_id": self.request_id,
            "head_revision": self.head_revision,
            "keep_head": self.keep_head,
        }


def interactive_state_from_json(plain: Mapping[str, Any]) -> InteractiveState:
    """The state that `to_json` described. Raises ValueError, KeyError, TypeError where it is none."""
    return InteractiveState(
        session=state_from_json(plain["session"]),
        manifest=BlobRef(**plain["manifest"]),
        digest=plain["digest"],
        request_id=plain["request_id"],
        head_revision=plain["head_revision"],
        keep_head=plain["keep_head"],
        groups=dict(plain.get("groups", {})),
    )


def groups_after(before: Mapping[str, Any], taken: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """InteractiveState.groups after a step. taken: (run, group) of each trained trajectory."""
    known = {run_id: SettledGroups.from_json(run_id, one) for run_id, one in before.items()}
    for run_id, group_id in taken:
        known.setdefault(run_id, SettledGroups(run_id)).add(group_id)
    return {run_id: known[run_id].to_json() for run_id in sorted(known)}


@dataclass(frozen=True, slots=True)
class InteractiveStep:
    """What a durable interactive step measured."""

    step: int
    version: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class InteractiveView:
    """A model in interactive training, as an operator sees it.

    version: of its weights; steps: newest last; waiting_s: since the last of them, or since this process
    began; failure: why it cannot be opened, if so.
    """

    model: str
    version: int
    is_working: bool
    steps: tuple[InteractiveStep, ...]
    waiting_s: float
    failure: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """An interactive optimizer step, durable and published. is_head: head moved to it."""

    step: int
    version: int
    checkpoint_id: str
    sampler_path: str
    state_path: str
    model: str
    metrics: Mapping[str, float]
    is_head: bool
