"""Packed rows compute what each row alone would, whether they share prefixes or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.services.grpo_trainer.tiny import new_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from grpo_math.errors import MalformedRow
from grpo_math.logprobs import token_logprobs
from grpo_math.packing import TrainingRow, microbatches, pack, shared_prefix, sorted_for_sharing
from grpo_trainer.learner.packed_model import PackedModel

VOCAB = 40
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 128,
}
ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def models(kind: str) -> tuple[PackedModel, Any]:
    """The same float64 weights behind packed attention and behind transformers' own."""
    config, architecture = ARCHITECTURES[kind]
    torch.manual_seed(0)
    packed = new_model(config(**SHAPE), dtype=torch.float64)
    plain = architecture(config(**SHAPE)).double().eval()
    plain.load_state_dict(packed.module.state_dict())
    return packed, plain


def row(
    name: str, group: str, ids: list[int], trained: Callable[[int], bool], advantage: float
) -> TrainingRow:
    flags = torch.tensor([index > 0 and trained(index) for index in range(len(ids))])
    return TrainingRow(name, group, torch.tensor(ids), flags, torch.full((len(ids),), -1.0), advantage)


def family(seed: int, members: int, *, prefix: int, group: str) -> list[TrainingRow]:
    """Rows of one group: a common prefix, then random tails, some of which branch later."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randint(VOCAB, (prefix,), generator=generator).tolist()
    rows: list[TrainingRow] = []
    for member in range(members):
        length = int(torch.randint(2, 14, (1,), generator=generator))
        base = rows[-1].token_ids.tolist()[: prefix + 3] if member % 3 == 2 else common
        tail = torch.randint(VOCAB, (length,), generator=generator).tolist()
        rows.append(row(f"{group}/{member}", group, [*base, *tail], lambda i: i >= prefix, member - 1.0))
    return rows


def batch_of_rows() -> list[TrainingRow]:
    return [
        *family(1, 4, prefix=7, group="a"),
        *family(2, 3, prefix=3, group="b"),
        *family(3, 1, prefix=1, group="c"),
        row("d/0", "d", [1, 2, 3], lambda _: True, 2.0),
        row("d/1", "d", [1, 2, 3], lambda _: True, -1.0),  # identical rows own nothing and still count twice
    ]


def one_by_one(model: Any, rows: list[TrainingRow]) -> tuple[float, Tensor]:
    """Loss and gradient of -sum(A * logprob), a row at a time, without any packing."""
    model.zero_grad()
    total = 0.0
    for each in rows:
        logits = model(input_ids=each.token_ids[None], use_cache=False).logits[0, :-1]
        logprobs = torch.log_softmax(logits, -1).gather(1, each.token_ids[1:, None])[:, 0]
        loss = -each.advantage * logprobs[each.trained[1:]].sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total, torch.cat([p.grad.flatten() for p in model.parameters()])


def in_microbatches(
    model: PackedModel, rows: list[TrainingRow], tokens: int, share: bool
) -> tuple[float, Tensor]:
    model.module.zero_grad()
    total = 0.0
    for cut in microbatches(rows, max_tokens=tokens, share_prefixes=share):
        logprobs, _ = model.logprobs(cut)
        loss = -(logprobs * cut.advantages).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total, torch.cat([p.grad.flatten() for p in model.module.parameters()])


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("tokens", [1, 25, 10_000])
def test_packed_equals_one_row_at_a_time(kind: str, share: bool, tokens: int) -> None:
    packed, plain = models(kind)
    loss, gradient = one_by_one(plain, batch_of_rows())
    found, found_gradient = in_microbatches(packed, batch_of_rows(), tokens, share)
    assert found == pytest.approx(loss, rel=1e-9)
    # transformers computes the norms in float32, whatever the dtype of the model
    assert float((found_gradient - gradient).norm() / gradient.norm()) < 1e-6


def test_shared_tokens_are_computed_once() -> None:
    rows = sorted_for_sharing(family(5, 6, prefix=30, group="a"))
    shared, apart = pack(rows), pack(rows, share_prefixes=False)
    assert apart.num_unique_tokens == apart.num_row_tokens == shared.num_row_tokens
    assert shared.num_unique_tokens <= apart.num_unique_tokens - 5 * 30
    assert shared.num_trained == apart.num_trained
    assert shared.labels.equal(apart.labels)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(2, 30), min_size=1, max_size=12),
    groups=st.integers(1, 4),
    budget=st.integers(1, 80),
    share=st.booleans(),
)
def test_every_trained_token_is_in_exactly_one_microbatch(
    lengths: list[int], groups: int, budget: int, share: bool
) -> None:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = [
        row(
            str(n),
            str(n % groups),
            torch.randint(3, (length,), generator=generator).tolist(),
            lambda i: i % 2 == 1,
            n,
        )
        for n, length in enumerate(lengths)
    ]
    cuts = microbatches(rows, max_tokens=budget, share_prefixes=share)
    found = sorted(
        (float(a), int(label)) for cut in cuts for a, label in zip(cut.advantages, cut.labels, strict=True)
    )
    wanted = sorted((each.advantage, int(label)) for each in rows for label in each.token_ids[each.trained])
    assert found == wanted
    for cut in cuts:
        assert cut.num_unique_tokens <= budget or cut.num_rows == 1
        assert cut.attention.order.sort().values.equal(torch.arange(cut.num_unique_tokens))


def draw(length: int, generator: torch.Generator) -> list[int]:
    ids: list[int] = torch.randint(3, (length,), generator=generator).tolist()
    return ids


def test_positions_restart_in_every_row() -> None:
    rows = [row("a", "1", [5, 6, 7], lambda _: True, 1.0), row("b", "1", [5, 6, 8, 9], lambda _: True, 1.0)]
    assert pack(rows).position_ids.tolist() == [[0, 1, 2, 2, 3]]
    assert pack(rows, share_prefixes=False).position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3]]


def test_prefixes_are_shared_within_a_group_only() -> None:
    rows = [row("a", "1", [5, 6, 7], lambda _: True, 1.0), row("b", "2", [5, 6, 8], lambda _: True, 1.0)]
    assert pack(rows).num_unique_tokens == 6


def test_the_order_of_arrival_does_not_matter() -> None:
    rows = batch_of_rows()
    there = microbatches(rows, max_tokens=40)
    back = microbatches(rows[::-1], max_tokens=40)
    assert [cut.input_ids.tolist() for cut in there] == [cut.input_ids.tolist() for cut in back]
    assert [cut.advantages.tolist() for cut in there] == [cut.advantages.tolist() for cut in back]


def test_shared_prefix_lengths() -> None:
    assert shared_prefix(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])) == 2
    assert shared_prefix(torch.tensor([1, 2]), torch.tensor([1, 2, 4])) == 2
    assert shared_prefix(torch.tensor([9]), torch.tensor([1])) == 0


def test_malformed_rows_are_refused() -> None:
    ids, flags, logprobs = torch.tensor([1, 2]), torch.tensor([False, True]), torch.zeros(2)
    with pytest.raises(MalformedRow, match="position 0"):
        TrainingRow("r", "g", ids, torch.tensor([True, True]), logprobs, 1.0)
    with pytest.raises(MalformedRow, match="trained is"):
        TrainingRow("r", "g", ids, flags[:1], logprobs, 1.0)
    with pytest.raises(MalformedRow, match="temperature"):
        TrainingRow("r", "g", ids, flags, logprobs, 1.0, temperature=0.0)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunked_logprobs_equal_the_full_softmax(chunk: int) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.randn(11, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(11, (7,), generator=generator)
    temperature = torch.linspace(0.5, 1.5, 7, dtype=torch.float64)
    logits = hidden @ head.t() / temperature[:, None]
    log_p = torch.log_softmax(logits, dim=1)
    expected, entropy = log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(dim=1)
    logprobs, entropies = token_logprobs(hidden, head, labels, temperature=temperature, chunk=chunk)
    assert torch.allclose(logprobs, expected, atol=1e-12)
    assert torch.allclose(entropies, entropy, atol=1e-12)
    weights = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    theirs = torch.autograd.grad((expected * weights[0] + entropy * weights[1]).sum(), (hidden, head))
    ours = torch.autograd.grad((logprobs * weights[0] + entropies * weights[1]).sum(), (hidden, head))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
