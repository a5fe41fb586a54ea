"""Shares of a step, and the random model that is moved."""

from pathlib import Path

import pytest
from benchmarks.checkpoints import noisy_copy
from benchmarks.weight_movement import Moved, Size, Step, batch_seconds, bytes_of, figures_of, write_random

from embedded_engine.weights import load_weights
from policy_files import tensors_of_directory
from upcycle.api.common.v1.common_pb2 import BlobRef
from upcycle.api.training.v1.training_pb2 import PolicyFile, PolicyManifest


def test_fetch_and_reload_together_are_the_share() -> None:
    moved = Moved("by engines", [0.3, 0.2, 0.1], [0.1, 0.1, 0.1], [0.001, 0.002, 0.003])
    fetch, reload, share = figures_of(Size("demo", 2_800_000, Step(10.0, "of the demo")), 8, moved)
    assert (fetch.value, reload.value) == (0.2, 0.1)
    assert share.samples == pytest.approx((4.0, 3.0, 2.0))
    assert share.met is True
    assert share.name == "movement of a version of 2.8 MB to 8 engines of one host, of a training step"
    assert (reload.note, share.note) == (
        "by engines; sampling stands still for 2 ms",
        "a step takes 10 s: of the demo",
    )


def test_a_share_above_the_limit_misses_it_and_no_engine_stands_still_where_none_runs() -> None:
    size = Size("large", 1_010_000_000, Step(1.0, "x"))
    _, reload, share = figures_of(size, 1, Moved("loading alone", [0.03], [0.02]))
    assert share.met is False
    assert reload.name == "reload of a version of 1.01 GB to 1 engine of one host"
    assert reload.note == "loading alone"


def test_each_further_group_of_a_batch_takes_what_the_second_one_took() -> None:
    assert batch_seconds(2.0, 3.5, 24) == pytest.approx(36.5)
    assert batch_seconds(2.0, 1.9, 24) == 2.0, "a busy machine makes no group faster than none"


def test_all_files_of_a_version_count() -> None:
    files = [PolicyFile(name=f"{size}", blob=BlobRef(size_bytes=size)) for size in (3, 40)]
    assert bytes_of(PolicyManifest(files=files)) == 43


def test_versions_of_the_random_model_load_and_differ_in_values_alone(tmp_path: Path) -> None:
    base, first, second = tmp_path / "base", tmp_path / "first", tmp_path / "second"
    write_random(base, hidden=128, layers=1)
    assert len(noisy_copy(base, first, seed=1)) == len(noisy_copy(base, second, seed=2)) > 0
    assert tensors_of_directory(base) == tensors_of_directory(first) == tensors_of_directory(second)
    config = load_weights(first).config
    assert (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (128, 1, 2, 1)
    written = [(folder / "model.safetensors").read_bytes() for folder in (base, first, second)]
    assert len(set(written)) == 3
