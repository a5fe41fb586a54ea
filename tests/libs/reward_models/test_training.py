"""What a reward model learns, and what it does not."""

from pathlib import Path

import pytest
from tests.libs.reward_models.small_policy import episodes, graded, shuffled, write_policy

from reward_models import RewardModelRefused
from reward_models.model import OutcomeRewardModel
from reward_models.training import (
    RewardModelOptions,
    TrainedRewardModel,
    save_reward_model,
    split_by_task,
    train_reward_model,
)

FAST = RewardModelOptions(learning_rate=3e-3, epochs=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def trained(base: Path) -> TrainedRewardModel:
    return train_reward_model(base, episodes(40), FAST)


def test_it_learns_a_planted_signal_on_tasks_that_it_never_saw(trained: TrainedRewardModel) -> None:
    measured = trained.measured
    assert measured.auc is not None
    assert measured.auc.value > 0.95
    assert measured.within is not None
    assert measured.within.value > 0.95
    assert measured.calibration.brier.value < measured.calibration.brier_of_rate / 2
    assert (trained.num_tasks, measured.num_tasks) == (32, 8)


def test_of_shuffled_outcomes_it_learns_nothing_that_holds_elsewhere(base: Path) -> None:
    measured = train_reward_model(base, shuffled(episodes(40)), FAST).measured
    assert measured.auc is not None
    assert measured.auc.interval is not None
    assert measured.auc.interval.low < 0.5
    assert measured.auc.value < 0.75


def test_no_task_is_on_both_sides_and_equal_tasks_and_seed_give_equal_sides() -> None:
    given = episodes(10)
    training, apart = split_by_task(given, 0.3, seed=0)
    assert not {one.task for one in training} & {one.task for one in apart}
    assert len({one.task for one in apart}) == 3
    assert split_by_task(list(reversed(given)), 0.3, seed=0)[1] == list(reversed(apart))
    assert {one.task for one in split_by_task(given, 0.3, seed=1)[1]} != {one.task for one in apart}


def test_what_is_loaded_scores_as_what_was_trained_one_by_one_or_together(
    trained: TrainedRewardModel, base: Path, tmp_path: Path
) -> None:
    save_reward_model(trained.model, base, tmp_path / "orm")
    read = [one.conversation for one in episodes(3, seed=5)]
    loaded = OutcomeRewardModel.load(tmp_path / "orm")
    together = loaded.score(read)
    assert together == pytest.approx(trained.model.score(read), abs=1e-5)
    assert [loaded.score([one])[0] for one in read] == pytest.approx(together, abs=1e-5)
    assert loaded.facts.tasks == trained.model.facts.tasks
    with pytest.raises(RewardModelRefused, match="is there already"):
        save_reward_model(trained.model, base, tmp_path / "orm")


def test_too_long_an_episode_is_refused_by_name(trained: TrainedRewardModel, base: Path) -> None:
    long = graded("task-99", "traj-long", "red " * 200, True)
    with pytest.raises(RewardModelRefused, match=r"traj-long has \d+ tokens, .* reads at most 128"):
        trained.model.score([long.conversation])
    assert "traj-long has" in trained.model.why_unreadable(long.conversation)
    assert not trained.model.why_unreadable(episodes(1)[0].conversation)
    with pytest.raises(RewardModelRefused, match="traj-long has"):
        train_reward_model(base, [long], FAST)
    short = RewardModelOptions(learning_rate=3e-3, epochs=1)
    assert [one[:13] for one in train_reward_model(base, [*episodes(8), long], short).unread] == [
        "traj-long has"
    ]


def test_data_that_teaches_nothing_is_refused(base: Path) -> None:
    alike = [graded(f"task-{task}", str(task), "red", True) for task in range(8)]
    with pytest.raises(RewardModelRefused, match="each of the 6 episodes that would train is a success"):
        train_reward_model(base, alike, FAST)
    with pytest.raises(RewardModelRefused, match="3 episodes of 1 task: some train"):
        train_reward_model(base, alike[:1] * 3, FAST)


def test_what_is_no_policy_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RewardModelRefused, match=f"{tmp_path} cannot be loaded as a sequence classifier"):
        train_reward_model(tmp_path, episodes(4), FAST)
