"""The promises, as statements about what is committed and stored. Looked at from outside of all processes."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.simulation.moments import Moments
from tests.simulation.nats_server import StoredMessage
from tests.simulation.services import PLANNER_DB, STORE_DB, Infrastructure

from event_bus.topology import EVENTS
from trajectory_store.domain.facts import LedgerState
from trajectory_store.domain.ledger import label_of
from upcycle.mixing import with_own

_LEDGER: Final = "SELECT episode_id, state, in_conflict, trained_twice, run_id, reason FROM episodes"
_SUMS: Final = "SELECT run_id, state, reason, count FROM ledger_counts WHERE count != 0"
_ALARMS: Final = "SELECT run_id, conflicts, trained_twice FROM ledger_alarms"
_RUNS: Final = "SELECT run_id, state FROM run"
_PLANNED: Final = "SELECT episode_id, state FROM episode"
_GRADED: Final = (
    "SELECT run_id, num_graded, (SELECT count(*) FROM episode AS one"
    " WHERE one.run_id = run.run_id AND graded_at IS NOT NULL) FROM run"
)
_MIXED: Final = (
    "SELECT mix.run_id, run.spec, mix.name, run.next_position,"
    " mix.num_groups, mix.num_trained + mix.num_left_out, mix.num_graded,"
    " (SELECT count(*) FROM task_group AS one WHERE one.run_id = mix.run_id AND one.taskset = mix.taskset),"
    " (SELECT count(*) FROM task_group AS one WHERE one.run_id = mix.run_id AND one.taskset = mix.taskset"
    " AND NOT one.is_open),"
    " (SELECT count(*) FROM episode AS one WHERE one.run_id = mix.run_id AND one.taskset = mix.taskset"
    " AND one.graded_at IS NOT NULL)"
    " FROM run_mix AS mix JOIN run ON run.run_id = mix.run_id"
)
"""What a run on several tasksets counts of each: its groups, those that ended, its graded episodes."""
_KEPT: Final = (
    "SELECT run.run_id, run.final_counts, count(*), sum(one.state IN ('planned', 'graded')),"
    " sum(one.state = 'trained') FROM run JOIN episode AS one ON one.run_id = run.run_id"
    " WHERE run.final_counts != '' AND run.purpose = 'train' GROUP BY run.run_id"
)
"""The counts that GetRun gives of a training run that is over; its episodes, the unsettled, the trained."""
_TWICE: Final = (
    "SELECT group_id, member FROM episode WHERE state IN ('planned', 'graded', 'trained', 'evaluated')"
    " GROUP BY group_id, member HAVING count(*) > 1"
)


class Broken(Exception):
    """A promise that does not hold. which: its short name."""

    def __init__(self, which: str, why: str) -> None:
        super().__init__(f"{which}: {why}")
        self.which = which


class PromiseWatch:
    """Looks at tables and stream of a history."""

    def __init__(self, given: Infrastructure, say: Callable[[str, str], None], moments: Moments) -> None:
        self._given = given
        self._say = say
        self._moments = moments
        self._ends: dict[str, str] = {}
        self.given_up: set[str] = set()
        """Runs that their trainer gave up."""
        self._trained: dict[str, tuple[str, int]] = {}
        self._settled: dict[str, tuple[str, int]] = {}
        self.saved: dict[str, str] = {}
        """Checkpoints that were announced, and their runs."""
        self._steps: dict[tuple[str, int], tuple[str, ...]] = {}
        self._bodies: dict[str, bytes] = {}

    def was_trained(self, run_id: str) -> bool:
        """Whether a step of the run was completed."""
        return any(one == run_id for one, _ in self._steps)

    def states(self) -> dict[str, str]:
        """Of the runs, as the planner has them."""
        return dict(self._rows(PLANNER_DB, _RUNS))

    def describe(self) -> str:
        """What hung runs look like."""
        states = Counter(state for _, state in self._rows(PLANNER_DB, _PLANNED))
        return f"{', '.join(self.states().values())}, episodes {dict(states)}"

    def at_the_end(self) -> None:
        """What must hold once a run is over and everything was delivered. Raises Broken."""
        if (difference := self.difference()) is not None:
            raise Broken("LEDGER", difference)
        for run_id, kept, *counted in self._rows(PLANNER_DB, _KEPT):
            by_state = json.loads(kept)["by_state"]
            num_open = sum(by_state.get(state, 0) for state in ("planned", "graded"))
            if [sum(by_state.values()), num_open, by_state.get("trained", 0)] != counted:
                raise Broken("COUNTS", f"{run_id} is over with {by_state}, and has {counted}")

    def difference(self) -> str | None:
        """The first episode about whose end planner and ledger disagree."""
        ledger = {row[0]: _LEDGER_STATES[row[1]] for row in self._rows(STORE_DB, _LEDGER)}
        for episode_id, state in self._rows(PLANNER_DB, _PLANNED):
            have = ledger.pop(episode_id, "unknown")
            # The planner may cancel what ended at the same moment: the ledger keeps what came first.
            if have != state and not (state == "cancelled" and have in ("failed", "evaluated", "excluded")):
                return f"{episode_id} is {state} for the planner, {have} in the ledger"
        for episode_id, state in ledger.items():
            return f"{episode_id} is unknown to the planner, {state} in the ledger"
        return None

    def _check_mixes(self) -> None:
        for run_id, spec, name, planned, *counted in self._rows(PLANNER_DB, _MIXED):
            if counted[:3] != counted[3:]:
                raise Broken("COUNTS", f"{name} of {run_id} counts {counted[:3]}, and has {counted[3:]}")
            asked = json.loads(spec)
            shares = {one.taskset: one.share for one in with_own(asked["taskset"], asked["mix"])}
            if counted[0] - shares[name] * planned >= 1:
                raise Broken("SHARES", f"{name} of {run_id} has {counted[0]} of {planned} groups")

    def on_stored(self, message: StoredMessage, stream: str) -> None:
        """A message was added to a stream."""
        if stream != EVENTS:
            return
        kind = kind_of(message.subject)
        fact = json.loads(message.data)
        self._say(f"{message.headers.get('Nats-Msg-Id')} {_short(fact)}", f"stream {message.sequence}")
        with self.noted():
            if kind == "group.settled":
                self._on_settled(fact)
            elif kind == "checkpoint.saved":
                self.saved[fact["checkpointId"]] = fact["runId"]
            elif kind == "step.completed":
                self._on_step(fact)
            elif kind == "session.failed":
                self.given_up.add(fact["runId"])
        self._moments.on_fact(kind)

    def on_object(self, key: str) -> None:
        """An object was stored."""
        self._moments.on_object(key)
        if key.partition("/")[2].startswith("trajectories/"):
            with self.noted():
                if self._bodies.setdefault(key, self._given.objects[key]) != self._given.objects[key]:
                    raise Broken("TWO BODIES", f"{key} was stored over another body")

    def on_planned(self) -> None:
        """The planner committed."""
        with self.noted():
            for run_id, counted, graded in self._rows(PLANNER_DB, _GRADED):
                if counted != graded:
                    raise Broken("COUNTS", f"{run_id} counts {counted} graded episodes, and has {graded}")
            self._check_mixes()
            for group_id, member in self._rows(PLANNER_DB, _TWICE):
                raise Broken("TWO MEMBERS", f"{group_id} has two episodes that count as its member {member}")
            for episode_id, state in self._rows(PLANNER_DB, _PLANNED):
                self._one_end(f"plan {episode_id}", state)

    def on_counted(self) -> None:
        """The ledger committed."""
        with self.noted():
            rows: Counter[tuple[str, int, str]] = Counter()
            for episode_id, state, in_conflict, is_twice, run_id, reason in self._rows(STORE_DB, _LEDGER):
                if in_conflict:
                    raise Broken("CONFLICT", f"{episode_id} has two ends in the ledger")
                if is_twice:
                    raise Broken("TRAINED TWICE", f"{episode_id} in the ledger")
                self._one_end(f"ledger {episode_id}", _LEDGER_STATES[state])
                rows[run_id, state, reason if state in _WITH_REASON else ""] += 1
            self._equation(rows)

    def _equation(self, rows: Counter[tuple[str, int, str]]) -> None:
        """What GetLedger adds up for a run is what its rows are, after each commit and without a difference:
        both are written in one transaction. A grade that races a cancellation, where planner and ledger may
        differ, is one row and one count here."""
        sums: Counter[tuple[str, int, str]] = Counter()
        for run_id, state, reason, count in self._rows(STORE_DB, _SUMS):
            sums[run_id, state, reason] += count
        for key in sorted({*rows, *sums}):
            if rows[key] != sums[key]:
                what = f"{sums[key]} {label_of(LedgerState(key[1]), key[2])}"
                raise Broken("EQUATION", f"{key[0]} counts {what} in the ledger, and has {rows[key]}")
        for run_id, conflicts, trained_twice in self._rows(STORE_DB, _ALARMS):
            if conflicts or trained_twice:
                seen = f"{conflicts} conflicts and {trained_twice} trained twice"
                raise Broken("EQUATION", f"{run_id} counts {seen} in the ledger, and no row has them")

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The history ends here; the code that runs now must not see why."""
        try:
            yield
        except Broken as broken:
            self._given.loop.failure = broken

    def _on_settled(self, fact: dict[str, Any]) -> None:
        if fact.get("sourceRunId"):
            return
        group_id, outcome, step = fact["groupId"], fact["outcome"], int(fact.get("step", 0))
        if self._settled.setdefault(group_id, (outcome, step)) != (outcome, step):
            was, at_step = self._settled[group_id]
            raise Broken("TWO ENDS", f"{group_id} was {was} at step {at_step} and is {outcome} at {step}")
        for episode_id in fact.get("episodeIds", ()):
            if fact["outcome"] == "trained":
                claim = (fact["runId"], step)
                if self._trained.setdefault(episode_id, claim) != claim:
                    raise Broken("TRAINED TWICE", f"{episode_id}: {self._trained[episode_id]} and {claim}")

    def _on_step(self, fact: dict[str, Any]) -> None:
        key = (fact["runId"], int(fact["step"]))
        members = tuple(sorted(fact.get("trajectoryIds", ())))
        if self._steps.setdefault(key, members) != members:
            raise Broken("TWO STEPS", f"{key} was completed with two different batches")
        for group_id in {one.rsplit("-e", 1)[0].removeprefix("traj-") for one in members}:
            outcome, _ = self._settled.get(group_id, (None, 0))
            if outcome != "trained":
                raise Broken("VOID STEP ANNOUNCED", f"{key}: {group_id} is {outcome}")

    def _one_end(self, what: str, state: str) -> None:
        before = self._ends.get(what)
        if state not in _OPEN:
            self._ends[what] = state
        if before in (None, state) or (before, state) == ("evaluated", "trained"):
            return
        raise Broken("TWO ENDS", f"{what} was {before} and is {state}")

    def _rows(self, service: str, statement: str) -> list[Any]:
        return self._given.databases[service].rows(statement)


_WITH_REASON: Final = frozenset({LedgerState.EXCLUDED, LedgerState.FAILED})
_OPEN: Final = frozenset({"planned", "graded", "requested", "recorded"})
_LEDGER_STATES: Final = {
    LedgerState.REQUESTED: "planned",
    LedgerState.RECORDED: "planned",
    **{state: state.name.lower() for state in LedgerState if state >= LedgerState.GRADED},
}


def kind_of(subject: str) -> str:
    """`entity.verb` of a fact."""
    return ".".join(subject.split(".")[3:5])


def _short(fact: dict[str, Any]) -> str:
    wanted = ("outcome", "reason", "step", "version", "kind", "isFinal", "reward", "state")
    return " ".join(f"{name}={fact[name]}" for name in wanted if name in fact)
