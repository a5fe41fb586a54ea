"""A PlanUnit's facts and commands, written to the outbox in the transaction of the state change."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from google.protobuf.message import Message

from episodes import Split, episode_failed
from event_bus.tracing import trace_of
from identities import events as event_ids
from scenario_runner.adapters.sql_new_tasks import NewTasks
from scenario_runner.adapters.sql_tasksets import SqlTasksets
from scenario_runner.domain.runs import Counts, EpisodeRow, GroupRow, RunRecord
from scenario_runner.domain.sources import Offer
from scenario_runner.domain.tasksets import RunnableTask
from scenario_runner.wire import published
from sql_store import enqueue, enqueue_again, enqueue_command, publish_again
from sql_store.outbox import Requested, enqueue_requested
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity, Usage
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed


class SqlAnnouncements(SqlTasksets):
    """Announcements about runs, groups and episodes, part of a PlanUnit. A repeated one adds nothing."""

    def __init__(self, connection: sa.Connection, now: datetime) -> None:
        super().__init__(connection, now)
        self._tasks: dict[tuple[str, int], RunnableTask] = {}
        self._groups: dict[str, GroupRow] = {}
        self.changed_runs: set[str] = set()
        """Whose rows this transaction writes."""
        self.new_tasks = NewTasks(connection, self.changed_runs)

    def announce_submitted(self, run: RunRecord, *, again: bool = False) -> None:
        fact, event_id = published.run_submitted(run), event_ids.run_submitted(run.run_id)
        self._announce(run, fact, event_id, again=again)

    def announce_stopping(self, run: RunRecord, reason: str, *, is_final: bool = False) -> None:
        """Once of each kind, however often it is asked for."""
        fact = published.run_stopping(run, reason, self.now, is_final=is_final)
        self._announce(run, fact, event_ids.run_stopping(run.run_id, is_final=is_final))

    def announce_stopping_again(self, run: RunRecord, reason: str) -> None:
        """The first run.stopping of an ending run once more, from its row."""
        fact = published.run_stopping(run, reason, run.ending_since or self.now, is_final=False)
        self._announce(run, fact, event_ids.run_stopping(run.run_id, is_final=False), again=True)

    def announce_settled(
        self, run: RunRecord, group_id: str, episode_ids: Sequence[str], source_run_id: str = ""
    ) -> None:
        """A group is excluded (one of the evaluation source_run_id: released), unless the trainer's
        group.settled for it is decided already."""
        fact = published.group_settled(run, group_id, episode_ids, self.now, source_run_id)
        offered_to = run.run_id if source_run_id else None
        event_id = event_ids.group_settled(group_id, offered_to=offered_to)
        self._announce(run, fact, event_id, author="planner")

    def announce_offered(
        self, run: RunRecord, offer: Offer, *, offered_before: datetime | None = None
    ) -> None:
        """offered_before: when it was announced; it is announced once more."""
        fact = published.group_offered(run, offer, offered_before or self.now)
        event_id = event_ids.group_offered(run.run_id, offer.group_id)
        self._announce(run, fact, event_id, again=offered_before is not None)

    def announce_finished(self, run: RunRecord, counts: Counts) -> None:
        self._announce(run, published.run_finished(run, counts, self.now), event_ids.run_finished(run.run_id))

    def failure_of(
        self, run: RunRecord, episode: EpisodeRow, failure: str, detail: str, *, environment_s: float
    ) -> EpisodeFailed:
        """What this service decides about an episode; it is not announced here."""
        identity, usage = self._identity(run, episode), Usage(environment_s=environment_s)
        return episode_failed(
            identity, failure, detail, reported_by="scenario_runner", at=self.now, usage=usage
        )

    def announce_graded_again(self, run: RunRecord, episode: EpisodeRow) -> None:
        """The grader's fact once more, from the row of the episode."""
        fact = published.trajectory_graded(episode, self._identity(run, episode))
        self._announce(run, fact, event_ids.episode_outcome(episode.episode_id), again=True)

    def announce_again(self, known: Collection[str]) -> None:
        """What the outbox still has under these ids; of what it has not, nothing."""
        publish_again(self._sql, known)

    def announce_cancelled(self, run: RunRecord, episode: EpisodeRow, reason: str) -> None:
        fact = published.episode_cancelled(self._identity(run, episode), reason, self.now)
        self._announce(run, fact, event_ids.episode_cancelled(episode.episode_id))

    def announce_shortened(
        self, run: RunRecord, group: GroupRow, reason: str, *, again: bool = False
    ) -> None:
        fact = published.group_shortened(run, group, reason)
        event_id = event_ids.group_shortened(group.group_id, group.expected_members)
        self._announce(run, fact, event_id, again=again)

    def _identity(self, run: RunRecord, episode: EpisodeRow) -> EpisodeIdentity:
        return published.episode_identity(run, episode, self.task_of(episode))

    def _announce(
        self, run: RunRecord, fact: Message, event_id: str, *, author: str = "", again: bool = False
    ) -> None:
        store = enqueue_again if again else enqueue
        with trace_of(run.trace):
            store(self._sql, fact, model=run.spec.policy.model, event_id=event_id, author=author)

    def _announce_requested(self, run: RunRecord, planned: Sequence[EpisodeRow], *, is_held: bool) -> None:
        """Of episodes that are new. is_held: no sampler gets them yet."""
        requests = [
            Requested(
                published.episode_requested(run, row, self.task_of(row), self.now),
                event_ids.episode_requested(row.episode_id),
                None if is_held else event_ids.episode_requested(row.episode_id, row.num_dispatches),
            )
            for row in planned
        ]
        pool, model = run.spec.purpose.value, run.spec.policy.model
        with trace_of(run.trace):
            enqueue_requested(self._sql, requests, pool=pool, model=model)

    def _enqueue_command(self, run: RunRecord, request: Message, episode: EpisodeRow) -> None:
        event_id = event_ids.episode_requested(episode.episode_id, episode.num_dispatches)
        pool, model = run.spec.purpose.value, run.spec.policy.model
        enqueue_command(self._sql, request, pool=pool, model=model, event_id=event_id)

    def task_of(self, row: EpisodeRow | GroupRow) -> RunnableTask:
        """What an episode, or a group, plays."""
        if row.new_task is not None:
            return self.new_tasks.of(row.run_id, row.new_task).task
        where = (row.taskset, row.task_position)
        if where not in self._tasks:
            groups = [group for group in self._groups.values() if group.taskset == row.taskset]
            self._read_tasks(row.taskset, {row.task_position, *(group.task_position for group in groups)})
        return self._tasks[where]

    def read_tasks_of(self, rows: Collection[EpisodeRow]) -> None:
        """Read what these episodes play in one go."""
        for run_id in {row.run_id for row in rows}:
            mine = [row.new_task for row in rows if row.run_id == run_id]
            self.new_tasks.read(run_id, {number for number in mine if number is not None})
        for key in {row.taskset for row in rows}:
            self._read_tasks(key, {row.task_position for row in rows if row.taskset == key})

    def _read_tasks(self, key: str, positions: Collection[int]) -> None:
        unread = [at for at in positions if (key, at) not in self._tasks]
        if unread:
            self._tasks |= {(key, at): task for at, task in self.tasks(key, unread).items()}

    def _splits_now(self, episodes: Sequence[EpisodeRow]) -> Mapping[str, Split]:
        """By digest of its task, the split that each of these episodes is played for."""
        self.read_tasks_of(episodes)
        return self.splits({self.task_of(episode).digest for episode in episodes})
