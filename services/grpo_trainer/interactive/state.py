"""Interactive sessions: the parameters and results of a step, the durable state, and the operator's view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from pydantic import TypeAdapter

from blob_store import BlobRef
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.states import BasePolicy, SessionState, state_from_json
from grpo_trainer.learner.prepared import Adam
from identities.entities import checkpoint_id


class Persist(Enum):
    """What of an optimizer step outlives the process: training state, weights and checkpoint; the weights, as
    a published version; nothing."""

    CHECKPOINT = "checkpoint"
    WEIGHTS = "weights"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step. gradients: request ids that must be accumulated. keep_head: do not move head."""

    adam: Adam
    gradients: tuple[str, ...] = ()
    keep_head: bool = False
    persist: Persist = Persist.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Head:
    """The promoted checkpoint of a model; revision: +1 at each move. set_revision: of the last move that a
    person or a step made, not the gate."""

    base: BasePolicy
    revision: int
    set_revision: int = 0

    @property
    def checkpoint_id(self) -> str:
        return self.base.checkpoint_id

    def leaves(self, trained: BasePolicy, since: int) -> bool:
        """True if training goes on from `trained` although head moved: head is the same, or only the gate
        moved it since revision `since`, to an older version. What the gate promotes while later steps are
        taken does not undo these; a person who sets head, or a newer version that a run trained, does."""
        is_older = self.set_revision <= since and self.base.version < trained.version
        return self.checkpoint_id == trained.checkpoint_id or is_older


@dataclass(frozen=True, slots=True)
class InteractiveState:
    """The durable state after an interactive optimizer step.

    manifest, digest: of the published weights; no other step can have their version. head_revision: of head
    when the step began. keep_head: the step does not move head. groups: by run, the stored groups that this
    step and the steps before it have trained, as SettledGroups.to_json.
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
        """By run, how many of its groups the weights were trained on."""
        return {run_id: len(SettledGroups.from_json(run_id, one)) for run_id, one in self.groups.items()}

    def with_tensors(self, files: tuple[BlobRef, ...]) -> InteractiveState:
        """The same state with the claim checks of its files."""
        return replace(self, session=replace(self.session, tensors=files))

    @property
    def checkpoint_id(self) -> str:
        """Id of the checkpoint that the step produced."""
        return checkpoint_id(self.session.spec.model, self.session.version)

    def is_current(self, head: Head) -> bool:
        """True if the next step continues this state: head points to it, has not moved since the step began
        (keep_head, or the process ended before it promoted the step), or was moved by the gate alone."""
        return head.revision == self.head_revision or head.leaves(self.published, self.head_revision)

    def is_unpromoted(self, head: Head) -> bool:
        """True if the step should have moved head, and head has not moved since the step began."""
        return not self.keep_head and head.revision == self.head_revision

    @property
    def published(self) -> BasePolicy:
        """The version that the step produced, as the base of a later session."""
        return BasePolicy(self.session.version, self.checkpoint_id, self.manifest)

    def to_json(self) -> dict[str, Any]:
        """Plain values, in a stable order."""
        return {**asdict(self), "session": self.session.to_json()}


_STATES: Final = TypeAdapter(InteractiveState)


def interactive_state_from_json(plain: Mapping[str, Any]) -> InteractiveState:
    """The state that `to_json` described. Raises ValueError, KeyError or TypeError for anything else."""
    return replace(_STATES.validate_python(plain), session=state_from_json(plain["session"]))


def groups_after(before: Mapping[str, Any], taken: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """InteractiveState.groups after a step. taken: (run, group) of each trained trajectory."""
    known = {run_id: SettledGroups.from_json(run_id, one) for run_id, one in before.items()}
    for run_id, group_id in taken:
        known.setdefault(run_id, SettledGroups(run_id)).add(group_id)
    return {run_id: known[run_id].to_json() for run_id in sorted(known)}


@dataclass(frozen=True, slots=True)
class InteractiveStep:
    """The metrics of a durable interactive step."""

    step: int
    version: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class InteractiveView:
    """An interactive session as GetSession shows it.

    version: of its weights. steps: newest last. waiting_s: since the newest step of this process, or since
    its start. failure: why the session cannot be opened; empty if it can.
    """

    model: str
    version: int
    is_working: bool
    steps: tuple[InteractiveStep, ...]
    waiting_s: float
    failure: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """An interactive optimizer step, saved as `persist` says; the ids and paths of what was not saved are
    empty. is_head: head moved to it."""

    step: int
    version: int
    checkpoint_id: str
    sampler_path: str
    state_path: str
    model: str
    metrics: Mapping[str, float]
    is_head: bool
    persist: Persist = Persist.CHECKPOINT
