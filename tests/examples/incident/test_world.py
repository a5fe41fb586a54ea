"""A world is its seed's, holds evidence and not the answer, and no single observation decides it."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest
from examples.incident.names import FIRST, SECOND, service_names, split_of
from examples.incident.world import BAD_DEPLOY, CAUSES, SYMPTOMS, Incident, World, draw_incident

# Issues, trace, logs, deploys.
Evidence = tuple[str, str, str, str]

INCIDENTS = [draw_incident("held_out", seed) for seed in range(1_000_000, 1_000_240)]


def alert_issue(world: World) -> str:
    line = next(line for line in world.list_issues().splitlines() if world.incident.alerting in line)
    return line.split("#")[1].split()[0]


def observations(incident: Incident) -> Evidence:
    world = World(incident)
    try:
        return (
            world.list_issues(),
            world.get_stack_trace(alert_issue(world)),
            world.search_logs(incident.faulty),
            world.recent_deploys(incident.faulty),
        )
    finally:
        world.close()


@pytest.fixture(scope="module")
def seen() -> list[Evidence]:
    """Issues, trace, logs and deploys of each of INCIDENTS."""
    return [observations(incident) for incident in INCIDENTS]


def symptom_of(logs: str) -> str:
    return next(cause for cause, message in SYMPTOMS.items() if message in logs)


def is_fresh(deploys: str) -> bool:
    return "minutes" in deploys.splitlines()[0]


def best_guess_rate(evidence: Iterable[tuple[object, str]]) -> float:
    """Success of the best possible guesser who sees only this evidence of each incident."""
    causes: defaultdict[object, Counter[str]] = defaultdict(Counter)
    for seen, cause in evidence:
        causes[seen][cause] += 1
    return sum(max(counts.values()) for counts in causes.values()) / len(INCIDENTS)


def test_a_seed_makes_the_same_world_and_another_seed_another(seen: list[Evidence]) -> None:
    again = draw_incident("held_out", 1_000_007)
    assert again == INCIDENTS[7]
    assert observations(again) == seen[7]
    assert len(set(seen)) == len(INCIDENTS)


def test_the_splits_share_words_and_no_names() -> None:
    train, held_out = set(service_names("train")), set(service_names("held_out"))
    assert not train & held_out
    assert {name.split("-")[0] for name in held_out} == set(FIRST)
    assert {name.split("-")[1] for name in held_out} == set(SECOND)
    assert len(held_out) >= 120


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_an_incident_names_only_services_of_its_split(split: str) -> None:
    for seed in range(100):
        incident = draw_incident("train" if split == "train" else "held_out", seed)
        assert {split_of(name) for name in incident.services} == {split}
        assert len(set(incident.services)) == 4


def test_a_name_outside_the_word_lists_has_no_split() -> None:
    with pytest.raises(ValueError, match="nobody-cares"):
        split_of("nobody-cares")


def test_the_right_observations_decide_every_incident(seen: list[Evidence]) -> None:
    for incident, (_, trace, logs, deploys) in zip(INCIDENTS, seen, strict=True):
        assert trace.splitlines()[-1].startswith(f"calls {incident.faulty} ")
        cause = BAD_DEPLOY if is_fresh(deploys) else symptom_of(logs)
        assert cause == incident.cause


def test_only_the_trace_names_the_service_at_fault_and_it_says_nothing_of_the_cause(
    seen: list[Evidence],
) -> None:
    for incident, (issues, trace, logs, deploys) in zip(INCIDENTS, seen, strict=True):
        assert incident.faulty in trace
        assert all(incident.faulty not in other for other in (issues, logs, deploys))
    shapes = [(len(trace.splitlines()), trace.split()[0]) for _, trace, _, _ in seen]
    causes = [incident.cause for incident in INCIDENTS]
    assert best_guess_rate(zip(shapes, causes, strict=True)) == pytest.approx(1 / len(CAUSES))


def test_logs_alone_or_deploys_alone_do_not_decide_the_cause(seen: list[Evidence]) -> None:
    causes = [incident.cause for incident in INCIDENTS]
    logs = [symptom_of(logs) for _, _, logs, _ in seen]
    deploys = [is_fresh(deploys) for _, _, _, deploys in seen]
    assert best_guess_rate(zip(logs, causes, strict=True)) <= 0.80
    assert best_guess_rate(zip(deploys, causes, strict=True)) == pytest.approx(0.5)


def test_the_alerting_services_own_evidence_says_nothing_about_the_cause() -> None:
    by_cause: defaultdict[str, set[str]] = defaultdict(set)
    for incident in INCIDENTS[:60]:
        world = World(incident)
        by_cause[incident.cause].add(world.search_logs(incident.alerting))
        world.close()
    assert len({frozenset(logs) for logs in by_cause.values()}) == 1


def test_the_database_does_not_hold_the_answer(seen: list[Evidence]) -> None:
    for found in seen:
        assert all(cause not in "\n".join(found) for cause in CAUSES)


def test_causes_are_balanced_over_consecutive_seeds() -> None:
    assert Counter(incident.cause for incident in INCIDENTS[:120]) == dict.fromkeys(CAUSES, 30)


@pytest.mark.parametrize(
    "hostile",
    ["", "nobody", "'; DROP TABLE logs; --", "amber-cart' OR '1'='1", "%", "\x00", "\u202e", "x" * 100_000],
)
def test_hostile_arguments_find_nothing_and_break_nothing(hostile: str) -> None:
    world = World(INCIDENTS[0])
    assert world.search_logs(hostile) == "no such service"
    assert world.recent_deploys(hostile) == "no such service"
    assert world.get_stack_trace(hostile) == "no such issue"
    assert world.search_logs(INCIDENTS[0].faulty) != "no such service"
    assert world.num_calls == 4
    world.close()
