"""What a reward model learns, and what it does not."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.libs.reward_models.small_policy import episodes, graded, shuffled, write_policy
from torch import Tensor

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


@pytest.fixture
def orm(trained: TrainedRewardModel, base: Path, tmp_path: Path) -> Path:
    """Its folder, to be damaged."""
    save_reward_model(trained.model, base, tmp_path / "orm")
    return tmp_path / "orm"


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


def damaged(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """Its weights changed."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def without_head(weights: dict[str, Tensor]) -> None:
    del weights["score.weight"]


def of_another_shape(weights: dict[str, Tensor]) -> None:
    weights["score.weight"] = torch.zeros(2, 3)


def with_nan(weights: dict[str, Tensor]) -> None:
    weights["model.norm.weight"][0] = torch.nan


def with_infinity(weights: dict[str, Tensor]) -> None:
    weights["score.weight"][0, 0] = torch.inf


def too_large(weights: dict[str, Tensor]) -> None:
    weights["score.weight"] = torch.full_like(weights["score.weight"], 3e38)


def too_large_in_one_place(weights: dict[str, Tensor]) -> None:
    weights["model.norm.weight"][0] = 1e30
    weights["score.weight"] = torch.zeros_like(weights["score.weight"])
    weights["score.weight"][0, 0] = 1e30


def of_fewer_tokens(weights: dict[str, Tensor]) -> None:
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:4].clone()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_head, r"lacks weights \(score\.weight\), whose place chance would take"),
        (of_another_shape, "cannot be loaded as a sequence classifier"),
        (with_nan, r"no finite numbers: model\.norm\.weight"),
        (with_infinity, r"no finite numbers: score\.weight"),
        (of_fewer_tokens, "cannot be loaded as a sequence classifier"),
    ],
)
def test_weights_that_are_damaged_choose_nothing(
    orm: Path, change: Callable[[dict[str, Tensor]], None], said: str
) -> None:
    with pytest.raises(RewardModelRefused, match=said):
        OutcomeRewardModel.load(damaged(orm, change))


class _Ran:
    """Pickled, it runs a command where it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, (RAN,)


RAN = "ran"


def test_nothing_of_a_folder_is_run(orm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (orm / "model.safetensors").unlink()
    (orm / "pytorch_model.bin").write_bytes(pickle.dumps({"score.weight": _Ran()}))
    with pytest.raises(RewardModelRefused, match="cannot be loaded as a sequence classifier"):
        OutcomeRewardModel.load(orm)
    config = json.loads((orm / "config.json").read_text())
    own = {"AutoModelForSequenceClassification": "own.Model", "AutoConfig": "own.Config"}
    (orm / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": own}))
    (orm / "own.py").write_text(f"import os\nos.mkdir({RAN!r})\n")
    with pytest.raises(RewardModelRefused, match="cannot be loaded as a sequence classifier"):
        OutcomeRewardModel.load(orm)
    assert not (tmp_path / RAN).exists()


@pytest.mark.parametrize("text", ["", "\0" * 64, '{"a": ' * 9])
def test_files_that_are_none_are_refused_by_name(orm: Path, text: str) -> None:
    (orm / "model.safetensors").write_text(text)
    with pytest.raises(RewardModelRefused, match="cannot be loaded as a sequence classifier"):
        OutcomeRewardModel.load(orm)


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


@pytest.mark.parametrize(("change", "said"), [(too_large, "nan"), (too_large_in_one_place, "-?inf")])
def test_finite_weights_that_overflow_choose_nothing(
    orm: Path, change: Callable[[dict[str, Tensor]], None], said: str
) -> None:
    model = OutcomeRewardModel.load(damaged(orm, change))
    with pytest.raises(RewardModelRefused, match=f"orm gives .* {said} in place of log-odds"):
        model.score([one.conversation for one in episodes(2, seed=5)])


def test_training_that_diverges_makes_no_reward_model(base: Path) -> None:
    with pytest.raises(RewardModelRefused, match="smaller --learning-rate"):
        train_reward_model(base, episodes(10), replace(FAST, learning_rate=1e30, epochs=1))
