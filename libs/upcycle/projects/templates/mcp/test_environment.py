"""The reference player earns everything; cheap answers earn nothing."""

from player import reply
from projects import incident_of, project_of
from tasks import held_out, train
from world import CAUSES

from upcycle.playing.in_process import play_tasks


def test_the_reference_player_earns_everything() -> None:
    for episode in play_tasks([*train.tasks[:8], *held_out.tasks[:8]], reply):
        assert episode.result is not None, episode.failure
        assert (episode.result.score, episode.result.success) == (1.0, True)


def test_the_tools_are_those_of_the_server() -> None:
    calls = [
        {"name": "get_sentry_issues", "arguments": {"project": "nowhere"}},
        {"name": "get_stack_trace", "arguments": {"issue_id": "harbour-1-99"}},
    ]
    turns = iter([{"tool_calls": calls}, "I give up."])
    episode = play_tasks(train.tasks[:1], lambda task, messages: next(turns))[0]
    assert {tool["function"]["name"] for tool in episode.tools} == {"get_sentry_issues", "get_stack_trace"}
    said = [message["content"] for message in episode.messages if message["role"] == "tool"]
    assert "there is no project 'nowhere'" in said[0]
    assert "has no issue 'harbour-1-99'" in said[1]


def test_cheap_answers_earn_nothing() -> None:
    services = incident_of("harbour-1").services
    every = " ".join(f"service: {name} cause: {cause}" for name in services for cause in CAUSES)
    answers = ("", "service: amber-api cause: bad_deploy", every, "x" * 10_000)
    said = iter(answers * 8)
    tasks = [task for task in train.tasks[:8] for _ in answers]
    for episode in play_tasks(tasks, lambda task, messages: next(said)):
        assert episode.result is not None, episode.failure
        assert episode.result.score == 0.0, episode.messages[-1]


def test_no_held_out_task_trains() -> None:
    assert not {task.digest for task in train} & {task.digest for task in held_out}
    projects = {split: {project_of(split, seed) for seed in range(1000)} for split in ("train", "held_out")}
    assert {split: len(names) for split, names in projects.items()} == {"train": 1000, "held_out": 1000}
    assert not projects["train"] & projects["held_out"]
    assert all(incident_of(name).split == split for split, names in projects.items() for name in names)
