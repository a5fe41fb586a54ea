"""The ledger's rules, one by one, and the equation under any order of facts."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.services.deliveries import delivered
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import EVAL, START

from episodes import EpisodeIdentity
from trajectory_store.domain.facts import EpisodeFact, LedgerState
from trajectory_store.domain.ledger import Episode, Ledger, deltas, fold
from trajectory_store.handlers import FACTS
from trajectory_store.wire.facts import MalformedFact


def facts(*messages: Message) -> list[EpisodeFact]:
    return [fact for message in messages for fact in FACTS.handle(delivered(message, START))]


def folded(*messages: Message) -> dict[str, Episode]:
    rows: dict[str, Episode] = {}
    for fact in facts(*messages):
        key = fact.identity.episode_id
        rows[key] = fold(rows.get(key), fact)
    return rows


def only(*messages: Message) -> Episode:
    (row,) = folded(*messages).values()
    return row


def test_a_training_episode_goes_from_requested_to_trained_with_its_step() -> None:
    path = [events.requested(1), events.recorded(1), events.graded(1), events.settled([1], "trained", step=7)]
    states = [only(*path[: length + 1]).state for length in range(len(path))]
    assert states == [LedgerState.REQUESTED, LedgerState.RECORDED, LedgerState.GRADED, LedgerState.TRAINED]
    row = only(*path)
    assert (row.label, row.step, row.in_conflict, row.trained_twice) == ("trained", 7, False, False)


def test_an_evaluation_is_settled_by_its_grade() -> None:
    row = only(
        events.requested(1, purpose=EVAL), events.recorded(1, purpose=EVAL), events.graded(1, purpose=EVAL)
    )
    assert row.state is LedgerState.EVALUATED
    assert row.grade is not None
    assert row.grade.reward == 0.5


@pytest.mark.parametrize(
    ("message", "label"),
    [
        (events.failed(1, "environment_lost"), "failed(environment_lost)"),
        (events.cancelled(1), "cancelled"),
        (events.settled([1], "excluded", reason="zero_spread"), "excluded(zero_spread)"),
        (events.settled([1], "trained", step=3), "trained"),
        (events.stepped([1], 3), "trained"),
    ],
)
def test_each_end_has_its_label(message: Message, label: str) -> None:
    assert only(events.requested(1), message).label == label


def test_the_first_terminal_state_wins_whatever_comes_after() -> None:
    row = only(events.requested(1), events.failed(1), events.settled([1], "trained", step=2))
    assert row.label == "failed(timeout)"
    assert row.in_conflict


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        (events.settled([1], "trained", step=2), events.failed(1), True),
        (events.settled([1], "trained", step=2), events.settled([1], "excluded", reason="stale"), True),
        (events.settled([1], "excluded", reason="stale"), events.stepped([1], 2), True),
        (events.cancelled(1), events.settled([1], "trained", step=2), True),
        (events.graded(1, purpose=EVAL), events.failed(1), True),
        (events.graded(1, purpose=EVAL), events.settled([1], "excluded", reason="stale"), True),
        # The one change of an end that is allowed, and what a training run says of what it did not train.
        (events.graded(1, purpose=EVAL), events.settled([1], "trained", step=2, by="run-t"), False),
        (events.graded(1, purpose=EVAL), events.settled([1], "released", reason="stale", by="run-t"), False),
        (events.settled([1], "trained", step=2, by="run-t"), events.graded(1, purpose=EVAL), False),
        (
            events.settled([1], "trained", step=2, by="run-t"),
            events.settled([1], "released", by="run-u"),
            False,
        ),
        # Late but no contradiction: a second cancellation, or the same fact again.
        (events.settled([1], "trained", step=2), events.cancelled(1), False),
        (events.settled([1], "trained", step=2), events.stepped([1], 2), False),
        (events.cancelled(1), events.settled([1], "excluded", reason="run_over"), False),
        (events.failed(1), events.cancelled(1), False),
        (events.graded(1, purpose=EVAL), events.cancelled(1, purpose=EVAL), False),
        (events.settled([1], "excluded", reason="stale"), events.cancelled(1), False),
        (events.failed(1), events.failed(1, "engine_error"), False),
        (events.failed(1), events.graded(1, purpose=EVAL), False),
        (events.failed(1), events.graded(1), False),
    ],
)
def test_a_fact_that_denies_a_settled_state_is_a_conflict_and_a_late_one_is_not(
    first: Message, second: Message, conflict: bool
) -> None:
    assert only(events.requested(1), first, second).in_conflict is conflict


def test_two_steps_that_claim_one_trajectory_are_seen_once_each_trajectory() -> None:
    row = only(
        events.requested(1),
        events.stepped([1], 4),
        events.stepped([1], 5),
        events.stepped([1], 5),
        events.settled([1], "trained", step=4),
    )
    assert (row.trained_twice, row.step) == (True, 4)
    assert not only(events.stepped([1], 0), events.settled([1], "trained", step=0)).trained_twice


def _drawn() -> list[Message]:
    """All that is ever said of an episode of the evaluation run-e on which run-t trains in step 2."""
    return [
        events.requested(5, run="run-e", purpose=EVAL),
        events.recorded(5, run="run-e", purpose=EVAL),
        events.graded(5, run="run-e", purpose=EVAL),
        events.settled([5], "trained", step=2, run="run-e", by="run-t"),
        events.stepped([5], 2, run="run-e", by="run-t"),
    ]


def test_a_training_run_may_take_one_gradient_on_an_evaluated_episode() -> None:
    path = _drawn()
    rows = [only(*path[: length + 1]) for length in range(len(path))]
    assert [row.label for row in rows] == ["requested", "recorded", "evaluated", "trained", "trained"]
    row = rows[-1]
    assert (row.identity.run_id, row.trained_by_run, row.step) == ("run-e", "run-t", 2)
    assert (row.in_conflict, row.trained_twice) == (False, False)
    assert isinstance(row.identity, EpisodeIdentity)
    assert row.identity.purpose is EVAL, "the evaluation stays beside it"
    assert row.grade is not None
    assert row.grade.reward == 0.5


def test_an_evaluated_episode_that_trains_is_the_same_row_in_every_order_of_its_facts() -> None:
    expected = only(*_drawn())
    orders = list(permutations(_drawn()))
    assert len(orders) == 120
    assert all(only(*order) == expected for order in orders)


def test_an_own_episode_that_trains_is_the_same_row_in_every_order_of_its_facts() -> None:
    path = [
        events.requested(1),
        events.recorded(1),
        events.graded(1),
        events.settled([1], "trained", step=2),
        events.stepped([1], 2),
    ]
    expected = only(*path)
    assert (expected.identity.run_id, expected.trained_by_run) == ("run-1", "run-1")
    assert all(only(*order) == expected for order in permutations(path))


@pytest.mark.parametrize(
    "second",
    [
        events.settled([5], "trained", step=3, run="run-e", by="run-t"),
        events.settled([5], "trained", step=2, run="run-e", by="run-u"),
        events.stepped([5], 2, run="run-e", by="run-u"),
    ],
    ids=["other step", "other run", "other run's step"],
)
def test_a_second_claim_changes_nothing_but_is_counted_in_every_order(second: Message) -> None:
    once = only(*_drawn())
    after = only(*_drawn(), second, second)
    assert after.trained_twice
    assert (after.state, after.step, after.trained_by_run, after.updated_us) == (
        once.state,
        once.step,
        once.trained_by_run,
        once.updated_us,
    )
    assert not after.in_conflict
    for order in permutations([*_drawn(), second]):
        row = only(*order)
        assert (row.label, row.trained_twice, row.in_conflict) == ("trained", True, False)
        assert row.identity == once.identity


def test_a_released_group_says_nothing() -> None:
    released = events.settled([4, 5], "released", reason="zero_spread", run="run-e", by="run-t")
    assert facts(released) == []
    with_it = only(*_drawn()[:3], events.settled([5], "released", reason="stale", run="run-e", by="run-t"))
    assert with_it == only(*_drawn()[:3])
    assert with_it.label == "evaluated"


def test_the_episodes_own_facts_say_whose_it_is_and_a_settlement_only_fills_the_gap() -> None:
    step, group = _drawn()[4], _drawn()[3]
    assert only(step).identity.run_id == "run-t", "all that is known until then"
    assert only(step, group).identity.run_id == only(group, step).identity.run_id == "run-e"
    # A trainer that names no source: the episode's own run replaces the trainer's, in either order.
    unnamed = events.settled([5], "trained", step=2, run="run-e", by="run-t")
    unnamed.source_run_id = ""
    for own in (
        events.requested(5, run="run-e", purpose=EVAL),
        events.recorded(5, run="run-e", purpose=EVAL),
        events.graded(5, run="run-e", purpose=EVAL),
        events.failed(5, run="run-e", purpose=EVAL),
        events.cancelled(5, run="run-e", purpose=EVAL),
    ):
        assert only(unnamed, own).identity.run_id == only(own, unnamed).identity.run_id == "run-e"


def test_a_row_that_changes_runs_takes_its_counts_and_its_alarms_along() -> None:
    claims = facts(
        events.stepped([5], 2, run="run-e", by="run-t"), events.stepped([5], 3, run="run-e", by="run-t")
    )
    first = fold(fold(None, claims[0]), claims[1])
    (request,) = facts(events.requested(5, run="run-e", purpose=EVAL))
    moved = {delta.run_id: delta for delta in deltas([(first, fold(first, request))])}
    key = (LedgerState.TRAINED, "")
    assert (moved["run-t"].by_label, moved["run-t"].trained_twice) == ({key: -1}, -1)
    assert (moved["run-e"].by_label, moved["run-e"].trained_twice) == ({key: 1}, 1)


def test_a_late_grade_is_indexed_and_leaves_the_state() -> None:
    row = only(events.requested(1), events.recorded(1), events.failed(1), events.graded(1, reward=1.0))
    assert row.state is LedgerState.FAILED
    assert row.grade is not None
    assert row.grade.success


def test_facts_without_an_episode_are_refused_by_name() -> None:
    nameless = events.recorded(1)
    nameless.episode.episode_id = ""
    with pytest.raises(MalformedFact, match="TrajectoryRecorded"):
        facts(nameless)
    odd = events.settled([1], "trained")
    odd.outcome = "eaten"
    with pytest.raises(MalformedFact, match="eaten"):
        facts(odd)


@st.composite
def _true_stories(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """What really happens to eight episodes of an evaluation and eight of a training run, as it happens; and
    the same facts in any order, some of them twice."""
    story: list[Message] = []
    for run, purpose in (("run-e", EVAL), ("run-t", events.TRAIN)):
        for number in range(8):
            story += [
                events.requested(number, run=run, purpose=purpose),
                events.recorded(number, run=run, purpose=purpose),
                events.graded(number, run=run, purpose=purpose),
            ]
        for numbers in (range(4), range(4, 8)):
            drawn_by = draw(st.sampled_from(["run-t", "run-u"])) if run == "run-e" else ""
            step = draw(st.integers(0, 3))
            if draw(st.booleans()):
                story.append(events.settled(numbers, "trained", step=step, run=run, by=drawn_by))
                story.append(events.stepped(numbers, step, run=run, by=drawn_by))
            elif drawn_by:
                story.append(events.settled(numbers, "released", reason="stale", run=run, by=drawn_by))
            else:
                story.append(events.settled(numbers, "excluded", reason="zero_spread", run=run))
    again = draw(st.lists(st.sampled_from(story), max_size=8))
    return story, draw(st.permutations(story + again))


@settings(max_examples=200, deadline=None)
@given(_true_stories(), st.lists(st.integers(1, 9), max_size=12))
def test_what_really_happened_is_the_same_ledger_in_any_order(
    history: tuple[list[Message], list[Message]], sizes: list[int]
) -> None:
    story, shuffled = history
    expected = folded(*story)
    rows: dict[str, Episode] = {}
    counts: dict[str, Counter[tuple[LedgerState, str]]] = {}
    for batch in _batches(shuffled, sizes):
        before = dict(rows)
        for fact in facts(*batch):
            key = fact.identity.episode_id
            rows[key] = fold(rows.get(key), fact)
        for delta in deltas([(before.get(key), row) for key, row in rows.items() if before.get(key) != row]):
            counts.setdefault(delta.run_id, Counter()).update(delta.by_label)
            assert (delta.conflicts, delta.trained_twice) == (0, 0)
    assert rows == expected
    for run in ("run-e", "run-t"):
        own = [row for row in expected.values() if row.identity.run_id == run]
        ledger = Ledger(counts[run], 0, 0, None)
        assert len(own) == ledger.requested == ledger.settled == 8
        assert ledger.by_label == Counter(row.label for row in own)
    assert not any(counts.get("run-u", Counter()).values()), "a run that draws groups has requested nothing"


_NUMBERS = st.integers(0, 7)
_RUNS = st.sampled_from(["run-1", "run-2"])
_TRAINERS = st.sampled_from(["", "run-t"])
_PURPOSE_OF_RUN = {"run-1": events.TRAIN, "run-2": EVAL}


@st.composite
def _histories(draw: st.DrawFn) -> list[Message]:
    """Any facts about a few episodes, in any order, some of them twice."""

    def one() -> Message:
        run, number = draw(_RUNS), draw(_NUMBERS)
        purpose = _PURPOSE_OF_RUN[run]
        kind = draw(st.integers(0, 6))
        if kind == 0:
            return events.requested(number, run=run, purpose=purpose)
        if kind == 1:
            return events.recorded(number, run=run, purpose=purpose)
        if kind == 2:
            return events.graded(number, run=run, purpose=purpose)
        if kind == 3:
            return events.failed(number, draw(st.sampled_from(["timeout", "engine_error"])), run=run)
        if kind == 4:
            return events.cancelled(number, run=run)
        if kind == 5:
            numbers = [number, (number + 1) % 8]
            return events.stepped(numbers, draw(st.integers(0, 2)), run=run, by=draw(_TRAINERS))
        numbers = [number // 4 * 4 + member for member in range(4)]
        outcome = draw(st.sampled_from(["trained", "excluded", "released"]))
        step, by = draw(st.integers(0, 2)), draw(_TRAINERS)
        return events.settled(numbers, outcome, reason="stale", step=step, run=run, by=by)

    history = [one() for _ in range(draw(st.integers(1, 25)))]
    again = draw(st.lists(st.sampled_from(history), max_size=8))
    return draw(st.permutations(history + again))


def _batches(history: Sequence[Message], sizes: Sequence[int]) -> list[Sequence[Message]]:
    batches, start = [], 0
    for size in [*sizes, len(history)]:
        batches.append(history[start : start + size])
        start += size
    return [batch for batch in batches if batch]


@settings(max_examples=300, deadline=None)
@given(_histories(), st.lists(st.integers(1, 6), max_size=10))
def test_requested_equals_settled_plus_in_flight_after_every_batch(
    history: list[Message], sizes: list[int]
) -> None:
    rows: dict[str, Episode] = {}
    counts: Counter[tuple[LedgerState, str]] = Counter()
    conflicts = trained_twice = 0
    for batch in _batches(history, sizes):
        before = dict(rows)
        for fact in facts(*batch):
            key = fact.identity.episode_id
            rows[key] = fold(rows.get(key), fact)
        changed = [(before.get(key), row) for key, row in rows.items() if before.get(key) != row]
        for delta in deltas(changed):
            counts.update(delta.by_label)
            conflicts += delta.conflicts
            trained_twice += delta.trained_twice
        ledger = Ledger(counts, conflicts, trained_twice, None)
        assert ledger.requested == len(rows) == ledger.settled + ledger.in_flight
        assert ledger.settled == sum(row.state.is_terminal for row in rows.values())
        assert ledger.by_label == Counter(row.label for row in rows.values())
        assert ledger.conflicts == sum(row.in_conflict for row in rows.values())
        assert ledger.trained_twice == sum(row.trained_twice for row in rows.values())


@settings(max_examples=200, deadline=None)
@given(_histories())
def test_folding_a_history_twice_changes_nothing(history: list[Message]) -> None:
    assert folded(*history) == folded(*history, *history)
