"""The reference player earns everything; cheap answers earn little."""

from player import reply
from tasks import held_out, train

from upcycle.playing.in_process import play_tasks


def test_the_reference_player_earns_everything() -> None:
    for episode in play_tasks([*train.tasks[:5], *held_out.tasks[:5]], reply):
        assert episode.result is not None, episode.failure
        assert (episode.result.score, episode.result.success) == (1.0, True)


def test_cheap_answers_earn_little() -> None:
    for answer in ("", "6", "all of them", " ".join(map(str, range(100)))):
        episodes = play_tasks(train.tasks[:20], lambda task, messages, said=answer: said)
        mean = sum(one.result.score for one in episodes if one.result) / len(episodes)
        assert mean < 0.2, answer


def test_no_held_out_task_trains() -> None:
    assert not {task.digest for task in train} & {task.digest for task in held_out}
