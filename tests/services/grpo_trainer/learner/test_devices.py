"""What a machine lacks is refused before any run begins, and what does not compute is not touched."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.services.grpo_trainer.batches import config_of

from grpo_math import flex_attention
from grpo_math.logprobs import default_chunk
from grpo_math.packing import Microbatch, TrainingRow, pack
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.learner import packed_model
from grpo_trainer.learner.devices import check_device
from grpo_trainer.learner.packed_model import PackedModel, new_module
from grpo_trainer.learner.random_state import RandomState


def gpus(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with so many."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(("name", "ranks"), [("cpu", 1), ("cpu", 4), ("cuda", 1), ("cuda", 2), ("cuda:1", 1)])
def test_devices_of_this_machine_are_taken(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2, monkeypatch)
    check_device(name, ranks)


@pytest.mark.parametrize(
    ("name", "ranks", "count", "said"),
    [
        ("cdua", 1, 2, "cdua"),
        ("meta", 1, 2, "cpu and cuda"),
        ("cuda", 1, 0, "sees no CUDA device"),
        ("cuda:2", 1, 2, "3 GPUs are needed"),
        ("cuda", 4, 2, "4 GPUs are needed"),
        ("cuda:0", 2, 2, "a GPU each"),
    ],
)
def test_others_are_refused_by_name(
    name: str, ranks: int, count: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(count, monkeypatch)
    with pytest.raises(InvalidTrainingSpec, match=said):
        check_device(name, ranks)


def test_the_service_ends_with_the_status_of_wrong_settings() -> None:
    program = (sys.executable, "-m", "grpo_trainer")
    keys = {"UPCYCLE_ACCESS_OPEN": "true"}
    environment = {"GRPO_TRAINER_DEVICE": "cdua", "PATH": "/usr/bin:/bin", "HOME": "/tmp", **keys}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 2
    assert "GRPO_TRAINER_DEVICE 'cdua' cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_session_on_the_host_touches_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask a GPU for its generator takes half a gigabyte on it, of every process on every GPU."""
    gpus(8, monkeypatch)

    def touched(*_: object) -> None:
        raise AssertionError("a GPU was asked")

    for name in ("get_rng_state", "get_rng_state_all", "set_rng_state"):
        monkeypatch.setattr(torch.cuda, name, touched)
    with RandomState(3).active():
        assert torch.rand(()) < 1


def test_logits_of_a_large_vocabulary_are_held_for_fewer_positions() -> None:
    assert default_chunk(64) == 4096
    assert default_chunk(151_936) == 883
    assert default_chunk(1 << 40) == 1


def tokens(count: int) -> Microbatch:
    """One row."""
    trained = torch.ones(count, dtype=torch.bool)
    trained[0] = False
    return pack([TrainingRow("r", "g", torch.arange(count) % 64, trained, torch.zeros(count), 1.0)])


@pytest.mark.parametrize(
    ("count", "exact", "fused"), [(128, False, False), (200, True, False), (200, False, True)]
)
def test_flex_attention_is_for_more_than_one_block_and_not_for_exact_scores(
    count: int, exact: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[object]()
    monkeypatch.setattr(packed_model, "flex_mask", made.append)
    model = PackedModel(new_module(config_of("qwen3", tied=True)))
    model._flex = True
    model.logprobs(tokens(count), exact=exact)
    assert bool(made) is fused


def test_a_process_may_compile_a_kernel_for_each_of_its_models() -> None:
    """Past torch's own limit of 8 it would compute unfused, and hold all scores."""
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=8):  # monkeypatch would take the entry away afterwards
        flex_attention._kernel.__wrapped__("cuda")
        assert torch._dynamo.config.recompile_limit >= 64


def test_a_mask_is_made_once_and_only_where_rows_share_tokens() -> None:
    ids, trained = torch.arange(40) % 64, torch.ones(40, dtype=torch.bool)
    trained[0] = False
    other = ids.clone()
    other[30:] = 5
    rows = [
        TrainingRow(f"r{n}", "g", one, trained, torch.zeros(40), 1.0) for n, one in enumerate((ids, other))
    ]
    plain, sharing = pack(rows).attention.to("cpu").buckets
    assert plain.mask(torch.float32) is None
    mask = sharing.mask(torch.float32)
    assert mask is not None
    assert mask is sharing.mask(torch.float32)
    assert (mask.shape, mask.stride(-2) % 8) == ((1, 1, 10, 40), 0)
    assert torch.equal(mask[0, 0] == 0, torch.arange(40)[None] <= torch.arange(30, 40)[:, None])
