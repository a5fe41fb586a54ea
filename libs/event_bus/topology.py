"""Streams, durables and subjects as data. `provision` applies them; services only bind to them.

`identities.subjects` says how the addresses look. A durable of facts reads the messages of all tenants.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from google.protobuf.message import Message

from event_bus.decision_specs import DECISION_SPECS, DecisionSpec, copies
from event_bus.errors import UnknownEvent
from identities import durables, subjects
from identities.durables import durable
from identities.tenants import OWN_TENANT
from upcycle.api.registry.v1 import events_pb2 as registry
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as training
from upcycle.api.trajectory.v1 import events_pb2 as trajectory

MAX_EVENT_BYTES = 256 * 1024
"""Payload and headers of one message. Bulk travels as a BlobRef."""

DAY_S = 86400.0
BYTES_PER_EPISODE = 4500
"""Facts of one episode in their stream, together; 3,700 to 4,100 were measured in small runs, and a copied
decision says in 420 bytes where it came from.
"""
DECISIONS_PER_EPISODE = 2.5
"""At most: an outcome of each attempt, its share of a group's end and of a step."""
BYTES_PER_DECISION = 1440
QUEUED_OF_ONE_MODEL = 20_000
"""Commands of one pool. All may be out at once: those that no engine can play stop none behind them."""
_LONGEST_PLAY_S = 25 * 3600.0
"""A run may allow its episodes a day; the handler that plays one has deadlines of its own."""
RECORDS_OUT = 20_000
"""Records that graders have at once, those included that wait for a judge: they stop none behind them."""
_MIB = 1 << 20
TASKS, EVENTS, DECISIONS, DLQ = "TASKS", "EVENTS", "DECISIONS", "DLQ"
ATTEMPTS, ADVISORIES = "ATTEMPTS", "ADVISORIES"


class Keep(StrEnum):
    """What a stream does with its messages."""

    UNTIL_ACKED = "workqueue"
    UNTIL_LIMITS = "limits"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream: what it takes, how long it keeps it, and what it does when it is full."""

    name: str
    subjects: tuple[str, ...]
    keep: Keep = Keep.UNTIL_LIMITS
    max_bytes: int = 256 * _MIB
    max_msgs: int = -1
    max_age_s: float = 0.0
    """0 keeps for ever."""
    max_msg_bytes: int = MAX_EVENT_BYTES
    max_per_subject: int = -1
    max_consumers: int = -1
    """-1: the server's default, which is 1,000."""
    refuse_when_full: bool = False
    """Refuse new messages rather than drop the oldest."""
    may_forget: bool = False
    """No reader needs old messages: it is no alarm when the bound removes them."""
    duplicate_window_s: float = 600.0
    is_atomic: bool = False
    """Takes several messages as one: all or none."""
    copies_from: str = ""
    """A stream whose messages the server copies into this one, in their order."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Subject filter there -> subject here."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """One durable: who reads what, and what happens when it does not answer."""

    stream: str
    durable: str
    events: tuple[type[Message], ...]
    ack_wait_s: float = 10.0
    """Silence after which another replica gets the message; a heartbeat every third of it keeps a slow
    handler's own.
    """
    max_deliver: int = 5
    """Failures before the dead letters; -1 retries for ever (projections)."""
    max_ack_pending: int = 256
    """Messages out at once over all replicas: sum of their slots x 1.25."""
    pools: tuple[str, ...] = ()
    """For commands: the pools it takes work from."""
    handler_timeout_s: float = 900.0
    """A handler that takes longer has failed."""
    model: str | None = None
    """For commands: the model whose commands it reads, within the default tenant; None reads those of all."""

    def __post_init__(self) -> None:
        if not self.events:
            raise UnknownEvent(f"durable {self.durable} reads no event type: it would read everything")
        if (self.stream == TASKS) != bool(self.pools):
            raise UnknownEvent(
                f"durable {self.durable} of stream {self.stream} with pools {self.pools}: "
                f"commands come from pools, facts do not"
            )

    def of_model(self, model: str) -> "ConsumerSpec":
        """The durable of one model's queue. Raises InvalidIdentity."""
        return replace(self, durable=durables.of_model(self.durable, model), model=model)


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole bus as data."""

    streams: tuple[StreamSpec, ...]
    consumers: tuple[ConsumerSpec, ...]
    events: Mapping[type[Message], str]
    """Fact type -> `entity.verb`."""
    commands: Mapping[type[Message], str] = field(default_factory=dict)
    """Command type -> kind."""
    queues: tuple[ConsumerSpec, ...] = ()
    """What each model gets a durable of (`ConsumerSpec.of_model`), so that no model's commands wait behind
    another's. `event_bus.model_queues` makes and removes them.
    """
    decisions: Mapping[type[Message], DecisionSpec] = field(default_factory=dict)
    """The fact types that decide."""

    def verb_of(self, event: type[Message]) -> str:
        """`entity.verb` of a fact type. Raises UnknownEvent."""
        return _look_up(self.events, event, "fact")

    def kind_of(self, command: type[Message]) -> str:
        """Kind of a command type. Raises UnknownEvent."""
        return _look_up(self.commands, command, "command")

    def bound_by(self, spec: ConsumerSpec) -> Iterator[tuple[str, type[Message]]]:
        """(subject filter, type) of everything that a durable reads."""
        for event in spec.events:
            if spec.stream == TASKS:
                tenant = None if spec.model is None else OWN_TENANT
                for pool in spec.pools:
                    yield subjects.command(self.kind_of(event), pool, spec.model, tenant=tenant), event
            else:
                yield subjects.fact(self.verb_of(event), None, tenant=None), event

    def filters_of(self, spec: ConsumerSpec) -> tuple[str, ...]:
        """The subjects that a durable reads: of its types, and of what was replayed for it."""
        of_types = [subject for subject, _ in self.bound_by(spec)]
        return (*of_types, subjects.all_again(spec.stream, spec.durable))

    def fact_subject(self, event: type[Message], model: str, tenant: str = OWN_TENANT) -> str:
        """Where a fact about `model` is read. Raises UnknownEvent, InvalidIdentity."""
        return subjects.fact(self.verb_of(event), model, tenant)

    def address(
        self, event: type[Message], model: str, event_id: str, *, tenant: str = OWN_TENANT, author: str = ""
    ) -> tuple[str, str]:
        """(stream, subject) on which a fact about `model` is published. author: of a decision whose type has
        several.

        Raises UnknownEvent, InvalidIdentity.
        """
        spec = self.decisions.get(event)
        if spec is None:
            return EVENTS, self.fact_subject(event, model, tenant)
        return DECISIONS, spec.subject(event, model, event_id, author, tenant)

    def decided_by(self, subject: str) -> type[Message]:
        """Type of the decision that `subject` carries. Raises UnknownEvent."""
        for event, spec in self.decisions.items():
            if spec.takes(subject):
                return event
        raise UnknownEvent(f"{subject!r} carries no decision of this topology")

    def command_subject(self, command: type[Message], pool: str, model: str, tenant: str = OWN_TENANT) -> str:
        """Where a command for a worker of `pool` is published. Raises UnknownEvent, InvalidIdentity."""
        return subjects.command(self.kind_of(command), pool, model, tenant)


def _look_up(table: Mapping[type[Message], str], key: type[Message], what: str) -> str:
    if (found := table.get(key)) is None:
        known = ", ".join(sorted(one.__name__ for one in table)) or "none"
        raise UnknownEvent(
            f"{key.__name__} is not a {what} of this topology (known: {known}); add it to event_bus.topology"
        )
    return found


EVENT_SUBJECTS: Mapping[type[Message], str] = {
    taskset.RunSubmitted: "run.submitted",
    taskset.RunStopping: "run.stopping",
    taskset.RunFinished: "run.finished",
    taskset.EpisodeRequested: "episode.requested",
    taskset.EpisodeFailed: "episode.failed",
    taskset.EpisodeCancelled: "episode.cancelled",
    taskset.GroupShortened: "group.shortened",
    taskset.GroupOffered: "group.offered",
    trajectory.TrajectoryRecorded: "trajectory.recorded",
    trajectory.TrajectoryGraded: "trajectory.graded",
    trajectory.TrajectoryQuarantined: "trajectory.quarantined",
    trajectory.RecordedSessionOpened: "recorded_session.opened",
    trajectory.RecordedSessionExpired: "recorded_session.expired",
    training.GroupSettled: "group.settled",
    training.StepCompleted: "step.completed",
    training.PolicyPublished: "policy.published",
    training.CheckpointSaved: "checkpoint.saved",
    training.SessionFailed: "session.failed",
    registry.CheckpointEvaluated: "checkpoint.evaluated",
    registry.CheckpointPromoted: "checkpoint.promoted",
    registry.CheckpointHeld: "checkpoint.held",
    registry.CheckpointRolledBack: "checkpoint.rolled_back",
    registry.CanaryReleaseChanged: "canary_release.changed",
    registry.EngineReady: "engine.ready",
    registry.EngineReloaded: "engine.reloaded",
    registry.EngineReloadFailed: "engine.reload_failed",
}
"""Fact type -> `entity.verb`."""

COMMAND_SUBJECTS: Mapping[type[Message], str] = {taskset.EpisodeRequested: "episode"}
"""Command type -> kind."""

_PLANNER, _SAMPLER, _GRADER, _TRAINER = "scenario_runner", "rollout_sampler", "reward_grader", "grpo_trainer"
_REGISTRY, _ENGINE, _GATEWAY = "checkpoint_registry", "policy_engine", "model_gateway"
OWNERS: Mapping[type[Message], tuple[str, ...]] = {
    taskset.RunSubmitted: (_PLANNER,),
    taskset.RunStopping: (_PLANNER,),
    taskset.RunFinished: (_PLANNER,),
    taskset.EpisodeRequested: (_PLANNER,),
    # An episode fails where it is noticed: while it is played, graded, or when its deadline passes.
    taskset.EpisodeFailed: (_SAMPLER, _GRADER, _PLANNER),
    taskset.EpisodeCancelled: (_PLANNER,),
    taskset.GroupShortened: (_PLANNER,),
    taskset.GroupOffered: (_PLANNER,),
    # The gateway records the sessions of clients.
    trajectory.TrajectoryRecorded: (_SAMPLER, _GATEWAY),
    # The planner publishes it again when the trainer does not have it.
    trajectory.TrajectoryGraded: (_GRADER, _PLANNER),
    trajectory.TrajectoryQuarantined: ("trajectory_store",),
    trajectory.RecordedSessionOpened: (_GATEWAY,),
    trajectory.RecordedSessionExpired: (_GATEWAY,),
    # The planner settles the groups of a trainer that missed its deadline.
    training.GroupSettled: (_TRAINER, _PLANNER),
    training.StepCompleted: (_TRAINER,),
    training.PolicyPublished: (_TRAINER,),
    training.CheckpointSaved: (_TRAINER,),
    training.SessionFailed: (_TRAINER,),
    registry.CheckpointEvaluated: (_REGISTRY,),
    registry.CheckpointPromoted: (_REGISTRY,),
    registry.CheckpointHeld: (_REGISTRY,),
    registry.CheckpointRolledBack: (_REGISTRY,),
    registry.CanaryReleaseChanged: (_REGISTRY,),
    registry.EngineReady: (_ENGINE,),
    registry.EngineReloaded: (_ENGINE,),
    registry.EngineReloadFailed: (_ENGINE,),
}
"""Fact or command type -> the services that publish it."""

STREAMS = (
    StreamSpec(
        TASKS,
        (subjects.all_tasks(), subjects.all_again(TASKS)),
        keep=Keep.UNTIL_ACKED,
        max_bytes=1024 * _MIB,
        max_msgs=200_000,
        max_per_subject=QUEUED_OF_ONE_MODEL,  # so that one that no engine serves leaves room
        max_consumers=100_000,  # two for each model
        refuse_when_full=True,
        is_atomic=True,
        description="commands; each is deleted when its owner acknowledged it",
    ),
    StreamSpec(
        DECISIONS,
        (subjects.all_decisions(),),
        max_bytes=3_000_000 * BYTES_PER_DECISION,
        # The server keeps all subjects in memory: this many take 1.2 GiB, and 20 s of a restart.
        max_msgs=3_000_000,  # of 1.2 million episodes
        max_age_s=30 * DAY_S,
        is_atomic=True,
        description="the first decision about each episode, group and step; EVENTS has a copy of each",
    ),
    StreamSpec(
        EVENTS,
        (subjects.all_facts(), subjects.all_again(EVENTS)),
        max_bytes=1_200_000 * BYTES_PER_EPISODE,  # 40,000 episodes a day
        max_age_s=30 * DAY_S,
        # A copy says where it came from, beside what its publisher was allowed.
        max_msg_bytes=MAX_EVENT_BYTES + 4 * 1024,
        copies_from=DECISIONS,
        copied=copies(DECISION_SPECS, EVENT_SUBJECTS),
        is_atomic=True,
        description="facts, in the order in which they became durable",
    ),
    StreamSpec(
        DLQ,
        (subjects.all_dead_letters(), subjects.handled(None, tenant=None)),
        max_bytes=1024 * _MIB,
        max_age_s=30 * DAY_S,
        # The message as it was, plus the headers that say why it is here.
        max_msg_bytes=MAX_EVENT_BYTES + 8 * 1024,
        description="messages that their consumer gave up, each with its reason, and which were replayed",
    ),
    StreamSpec(
        ATTEMPTS,
        (subjects.all_attempts(),),
        max_bytes=64 * _MIB,
        max_age_s=30 * DAY_S,
        max_msg_bytes=4096,
        max_per_subject=1,
        may_forget=True,
        description="how often each troubled message was answered and how often it failed; places of readers",
    ),
    StreamSpec(
        ADVISORIES,
        ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>"),
        max_bytes=64 * _MIB,
        max_age_s=30 * DAY_S,
        may_forget=True,
        description="the server's advisories about messages that were given up",
    ),
)

SCENARIO_RUNNER_PLAN = ConsumerSpec(
    EVENTS,
    durable("scenario-runner", "plan"),
    (
        trajectory.TrajectoryGraded,
        taskset.EpisodeFailed,
        taskset.RunStopping,
        training.GroupSettled,
        training.StepCompleted,
        training.PolicyPublished,
        training.SessionFailed,
    ),
    ack_wait_s=5.0,
    max_deliver=-1,
    max_ack_pending=200,
)
ROLLOUT_SAMPLER_TRAIN = ConsumerSpec(
    TASKS,
    durable("rollout-sampler", "train"),
    (taskset.EpisodeRequested,),
    pools=("train",),
    max_ack_pending=QUEUED_OF_ONE_MODEL,
    handler_timeout_s=_LONGEST_PLAY_S,
)
ROLLOUT_SAMPLER_EVAL = ConsumerSpec(
    TASKS,
    durable("rollout-sampler", "eval"),
    (taskset.EpisodeRequested,),
    pools=("eval",),
    max_ack_pending=QUEUED_OF_ONE_MODEL,
    handler_timeout_s=_LONGEST_PLAY_S,
)
REWARD_GRADER = ConsumerSpec(
    EVENTS, durable("reward-grader"), (trajectory.TrajectoryRecorded,), max_ack_pending=RECORDS_OUT
)
TRAJECTORY_STORE_LEDGER = ConsumerSpec(
    EVENTS,
    durable("trajectory-store", "ledger"),
    (
        taskset.RunSubmitted,
        taskset.RunFinished,
        taskset.EpisodeRequested,
        taskset.EpisodeFailed,
        taskset.EpisodeCancelled,
        taskset.GroupShortened,
        trajectory.TrajectoryRecorded,
        trajectory.TrajectoryGraded,
        trajectory.RecordedSessionOpened,
        trajectory.RecordedSessionExpired,
        training.GroupSettled,
        training.StepCompleted,
    ),
    ack_wait_s=5.0,
    max_deliver=-1,
    max_ack_pending=200,
)
CHECKPOINT_REGISTRY = ConsumerSpec(
    EVENTS,
    durable("checkpoint-registry"),
    (training.PolicyPublished, training.CheckpointSaved, taskset.RunFinished),
    max_ack_pending=64,
)

UPCYCLE = Topology(
    STREAMS,
    (SCENARIO_RUNNER_PLAN, REWARD_GRADER, TRAJECTORY_STORE_LEDGER, CHECKPOINT_REGISTRY),
    EVENT_SUBJECTS,
    COMMAND_SUBJECTS,
    queues=(ROLLOUT_SAMPLER_TRAIN, ROLLOUT_SAMPLER_EVAL),
    decisions=DECISION_SPECS,
)
"""What this platform runs on."""
