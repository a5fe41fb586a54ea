"""The grader says no: near misses, lists of candidates, empty and hostile answers earn nothing."""

import pytest
from examples.incident.grading import NEEDED_CALLS, WEIGHTS, grade, read_answer
from examples.incident.names import service_names
from examples.incident.world import CAUSES, ERROR_CLASS, Incident, draw_incident
from hypothesis import given
from hypothesis import strategies as st

SEEDS = range(8)


def incident_of(cause: str) -> Incident:
    return next(
        found for found in (draw_incident("held_out", seed) for seed in SEEDS) if found.cause == cause
    )


def right(incident: Incident) -> str:
    return f"service: {incident.faulty} cause: {incident.cause}"


@pytest.mark.parametrize("cause", CAUSES)
def test_the_right_diagnosis_in_the_fewest_calls_scores_one(cause: str) -> None:
    incident = incident_of(cause)
    graded = grade(incident, right(incident), NEEDED_CALLS)
    assert graded.score == pytest.approx(1.0, abs=1e-9)
    assert graded.success
    assert graded.subscores == dict.fromkeys(WEIGHTS, 1.0)


def test_each_needless_call_costs_a_quarter_of_the_brevity_and_never_the_success() -> None:
    incident = draw_incident("train", 0)
    scores = [grade(incident, right(incident), NEEDED_CALLS + extra).score for extra in range(6)]
    assert scores == pytest.approx([1.0, 0.975, 0.95, 0.925, 0.9, 0.9])
    assert all(grade(incident, right(incident), calls).success for calls in (4, 9, 10_000))


def test_fewer_calls_than_the_evidence_takes_earn_nothing_extra() -> None:
    incident = draw_incident("train", 0)
    assert grade(incident, right(incident), 0).score == grade(incident, right(incident), NEEDED_CALLS).score


def test_partial_credit_of_worked_examples() -> None:
    incident = incident_of("out_of_memory")
    service = f"service: {incident.faulty} cause: "
    assert grade(incident, service + "pool_exhausted", 4).score == pytest.approx(0.5)  # service and class
    assert grade(incident, service + "database_down", 4).score == pytest.approx(0.3)  # service only
    assert not grade(incident, service + "pool_exhausted", 4).success


def test_the_right_cause_earns_nothing_for_another_service() -> None:
    incident = draw_incident("train", 1)
    for name in (incident.alerting, *incident.bystanders):
        assert grade(incident, f"service: {name} cause: {incident.cause}", 4).score == 0.0


@pytest.mark.parametrize(
    "form",
    [
        "",
        " ",
        "{s}",
        "{c}",
        "{s} {c}",
        "cause: {c} service: {s}",
        "service: {s}",
        "service: {s} cause:",
        "service:{s} cause:{c}",
        "service: {s}, cause: {c}",
        "service: {s} cause: {c}.",
        "service: {s} cause: {c}\x00",
        "Service: {s} cause: {c}",
        "service: {s} cause: {c} or bad_deploy",
        "service: {s} cause: bad_deploy|database_down|out_of_memory|pool_exhausted",
        "service: {s} cause: bad_deploy database_down out_of_memory pool_exhausted",
        "service: {s} cause: bad_deploy\nservice: {s} cause: {c}",
        "service: {s} cause: {c}\nservice: {s} cause: {c}",
        "service: {s}|amber-cart cause: {c}",
        "The answer is\nservice: {s} cause: {c}",
        "service: {s} cause: {c}" + " " * 500,
        "service: {s} cause: unknown_cause",
        "service: {s} cause: BAD_DEPLOY",
        "service: {s}\u200b cause: {c}",  # zero-width space
        "service: {s}\u00a0cause: {c}",  # no-break space
        "service: {s} cause: \u202e{c}",  # right-to-left override
        "s\u0435rvice: {s} cause: {c}",  # Cyrillic e
        "<tool_call>service: {s} cause: {c}</tool_call>",
    ],
)
def test_anything_but_one_plain_diagnosis_scores_zero(form: str) -> None:
    incident = incident_of("database_down")
    graded = grade(incident, form.format(s=incident.faulty, c=incident.cause), 4)
    assert (graded.score, graded.success) == (0.0, False)


def test_naming_every_service_and_cause_scores_zero() -> None:
    incident = draw_incident("train", 2)
    everything = " ".join(f"service: {name} cause: {cause}" for name in incident.services for cause in CAUSES)
    assert grade(incident, everything, 4).score == 0.0


@given(answer=st.text(max_size=300), calls=st.integers(0, 100))
def test_any_text_is_graded_without_an_error_and_in_bounds(answer: str, calls: int) -> None:
    graded = grade(draw_incident("train", 3), answer, calls)
    assert 0.0 <= graded.score <= 1.0
    assert not graded.success


@given(name=st.sampled_from(service_names("train")), cause=st.sampled_from(CAUSES))
def test_a_plain_diagnosis_is_read_as_it_stands(name: str, cause: str) -> None:
    diagnosis = read_answer(f" service: {name}\ncause: {cause}\n")
    assert diagnosis is not None
    assert (diagnosis.service, diagnosis.cause) == (name, cause)


def test_guessing_one_cause_for_the_right_service_succeeds_at_chance() -> None:
    incidents = [draw_incident("held_out", seed) for seed in range(400)]
    for cause in CAUSES:
        hits = sum(grade(one, f"service: {one.faulty} cause: {cause}", 4).success for one in incidents)
        assert hits == len(incidents) / len(CAUSES)


def test_every_cause_has_a_class_and_the_weights_sum_to_one() -> None:
    assert set(ERROR_CLASS) == set(CAUSES)
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)
