"""Tensors of a state: bit for bit there and back, whatever drew from which generator meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from grpo_trainer.adapters.random_state import RandomState
from grpo_trainer.adapters.tensor_files import (
    host_copy,
    load_tensors,
    read_tensors,
    weights_of,
    write_tensors,
)
from grpo_trainer.domain.errors import BrokenArtifact


def trained(seed: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2, bias=False))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return module, optimizer


def drawn() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    module, optimizer = trained(0, 3)
    optimizer.param_groups[0]["lr"] = 0.025
    state = RandomState(7)
    with state.active():
        drawn()
    copy = host_copy(dict(module.named_parameters()), optimizer, state)
    with torch.no_grad():
        next(module.parameters()).zero_()  # what was copied does not change any more
    write_tensors(tmp_path / "state", copy)
    found = read_tensors(tmp_path / "state")
    assert found.keys() == copy.keys()
    assert all(
        torch.equal(found[name], copy[name]) and found[name].dtype == copy[name].dtype for name in copy
    )

    other, fresh = trained(1, 0)
    again = RandomState(0)
    load_tensors(found, dict(other.named_parameters()), fresh, again)
    assert all(torch.equal(p, weights_of(copy)[name]) for name, p in other.named_parameters())
    assert fresh.param_groups[0]["lr"] == 0.025
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        left, right = optimizer.state[mine], fresh.state[theirs]
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    with state.active():
        expected = drawn()
    with again.active():
        assert drawn() == expected


def test_sessions_draw_from_their_own_generators_and_leave_the_process_alone() -> None:
    torch.manual_seed(5)
    outside = torch.get_rng_state()
    one, other = RandomState(1), RandomState(1)
    with one.active():
        first = drawn()
    with other.active():
        assert drawn() == first
        more = drawn()
    with one.active():
        assert drawn() == more
    assert torch.equal(torch.get_rng_state(), outside)


def test_an_optimizer_that_never_stepped_comes_back_fresh(tmp_path: Path) -> None:
    module, optimizer = trained(0, 0)
    write_tensors(tmp_path / "state", host_copy(dict(module.named_parameters()), optimizer, RandomState(0)))
    other, fresh = trained(1, 2)
    fresh.state.clear()
    load_tensors(read_tensors(tmp_path / "state"), dict(other.named_parameters()), fresh, RandomState(0))
    assert not fresh.state


def test_another_architecture_and_rotten_files_are_refused(tmp_path: Path) -> None:
    module, optimizer = trained(0, 1)
    copy = host_copy(dict(module.named_parameters()), optimizer, RandomState(0))
    names = {f"other.{name}": p for name, p in module.named_parameters()}
    with pytest.raises(BrokenArtifact, match="disagree about parameters"):
        load_tensors(copy, names, optimizer, RandomState(0))
    for rotten in (".metadata", "__0_0.distcp"):
        write_tensors(tmp_path / rotten, copy)
        (tmp_path / rotten / rotten).write_bytes(b"rotten")
        with pytest.raises(BrokenArtifact, match="no training state"):
            read_tensors(tmp_path / rotten)
    with pytest.raises(BrokenArtifact, match="no training state"):
        read_tensors(tmp_path)
