"""Facts that decide something, as data: where each is published, and as which fact it is read."""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import Message

from event_bus.errors import UnknownEvent
from identities import subjects
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as training
from upcycle.api.trajectory.v1 import events_pb2 as trajectory


@dataclass(frozen=True, slots=True)
class DecisionSpec:
    """A fact that decides: the first of all authors wins, for as long as the stream of decisions keeps it.

    kind: what is decided, the same word for all types that decide it. authors: the last tokens of the
    subjects of this type; rights can be given for each.
    """

    kind: str
    authors: tuple[str, ...]

    def subject(self, event: type[Message], model: str, event_id: str, author: str, tenant: str) -> str:
        """Where `author` publishes it; the event id says what it is about. author: empty where there is one.

        Raises UnknownEvent, InvalidIdentity.
        """
        chosen = self.authors[0] if not author and len(self.authors) == 1 else author
        if chosen not in self.authors:
            raise UnknownEvent(
                f"{event.__name__} decides, and author {author!r} is none of {', '.join(self.authors)}: say "
                "which of them publishes it"
            )
        verb, _, about = event_id.partition("/")
        if not about:
            raise UnknownEvent(
                f"event id {event_id!r} says {verb!r}, and not what it is about: make it <verb>/<id>"
            )
        return subjects.decision(self.kind, model, about, chosen, tenant)

    @property
    def filter(self) -> str:
        """All decisions of this type."""
        author = self.authors[0] if len(self.authors) == 1 else None
        return subjects.decision(self.kind, None, None, author, None)

    def takes(self, subject: str) -> bool:
        """Whether a decision on `subject` is of this type."""
        return subjects.kind_of_decision(subject) == self.kind and subjects.author_of(subject) in self.authors


DECISION_SPECS: Mapping[type[Message], DecisionSpec] = {
    trajectory.TrajectoryGraded: DecisionSpec("outcome", ("graded",)),
    taskset.EpisodeFailed: DecisionSpec("outcome", ("failed",)),
    trajectory.RecordedSessionExpired: DecisionSpec("outcome", ("expired",)),
    training.GroupSettled: DecisionSpec("settled", ("trainer", "planner")),
    # Stands or falls with the groups that it trained, and no other trainer takes the same step.
    training.StepCompleted: DecisionSpec("step", ("trainer",)),
}
"""Fact type -> what it decides."""


def copies(specs: Mapping[type[Message], DecisionSpec], verbs: Mapping[type[Message], str]) -> dict[str, str]:
    """Filter of the decisions of each type -> the subject on which the server stores them as facts."""
    return {spec.filter: subjects.copy_of_decision(verbs[event]) for event, spec in specs.items()}
