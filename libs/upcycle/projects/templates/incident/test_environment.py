"""The reference player earns everything; cheap answers earn nothing."""

from player import reply
from tasks import held_out, train
from world import CAUSES, draw_incident

from upcycle.playing.in_process import play_tasks


def test_the_reference_player_earns_everything() -> None:
    for episode in play_tasks([*train.tasks[:8], *held_out.tasks[:8]], reply):
        assert episode.result is not None, episode.failure
        assert (episode.result.score, episode.result.success) == (1.0, True)


def test_cheap_answers_earn_nothing() -> None:
    every = " ".join(f"service: {name} cause: {CAUSES[0]}" for name in draw_incident("train", 0).services)
    for answer in ("", "service: amber-api cause: bad_deploy", every, "x" * 10_000):
        for episode in play_tasks(train.tasks[:8], lambda task, messages, said=answer: said):
            assert episode.result is not None, episode.failure
            assert episode.result.score == 0.0, answer


def test_no_held_out_task_trains() -> None:
    assert not {task.digest for task in train} & {task.digest for task in held_out}
