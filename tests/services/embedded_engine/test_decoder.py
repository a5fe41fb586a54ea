"""The forward pass against transformers, prompt in one go, in chunks, and token by token."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.services.policy_engine.policies import Shape, make_policy
from tests.services.policy_engine.reference import reference_logits

from embedded_engine.decoder import Batch, DecoderModel, KeyValueCache, PrefillAttention, decode_attention
from embedded_engine.errors import BadWeights, UnsupportedModel
from embedded_engine.weights import ModelConfig, load_config, load_weights

SHAPES = {
    "qwen3 tied": Shape(),
    "qwen3 untied": Shape(tied=False, layers=3, heads=6, kv_heads=3),
    "llama": Shape("LlamaForCausalLM", heads=4, kv_heads=1, head_dim=32),
    "no grouping": Shape(heads=4, kv_heads=4),
}
ROWS = [list(range(5, 75)), [9, 8, 7, 6, 5], [*range(40, 60), *range(10, 23)]]


class Rows:
    """Three sequences in scattered slots of one cache."""

    slots = (4, 1, 6)

    def __init__(self, directory: Path) -> None:
        self.model = DecoderModel(load_weights(directory), 512)
        self.cache = KeyValueCache(self.model.config, 8, 512)
        for slot in self.slots:
            self.cache.begin(slot, 0)

    def prefill(self, starts: list[int], ends: list[int]) -> list[torch.Tensor]:
        """Logits of each row's tokens start..end."""
        which = [row for row in range(3) if ends[row] > starts[row]]
        slots, begins = [self.slots[row] for row in which], [starts[row] for row in which]
        counts = [ends[row] - starts[row] for row in which]
        positions = np.concatenate([np.arange(starts[row], ends[row]) for row in which])
        config = self.model.config
        attend = PrefillAttention.over(slots, begins, counts, config.num_heads // config.num_kv_heads)
        ids = torch.tensor([token for row in which for token in ROWS[row][starts[row] : ends[row]]])
        write = self.cache.write_index(np.repeat(slots, counts), positions)
        for slot, start, count in zip(slots, begins, counts, strict=True):
            self.cache.extend(slot, start, start + count)
        hidden = self.model.hidden(Batch(ids, torch.from_numpy(positions), write, attend), self.cache)
        return list(torch.split(self.model.logits(hidden), counts))

    def decode(self, tokens: list[int], positions: list[int]) -> torch.Tensor:
        order = np.argsort(self.slots)  # rows ascend by slot
        slots, at = np.array(self.slots)[order], np.array(positions)[order]
        self.cache.extend_each(slots, at)
        attend = decode_attention(slots, max(positions) + 1, self.cache)
        write = self.cache.write_index(slots, at)
        batch = Batch(torch.tensor(tokens)[order], torch.from_numpy(at), write, attend)
        return self.model.logits(self.model.hidden(batch, self.cache))[np.argsort(order)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_logits_are_those_of_transformers(tmp_path: Path, shape: Shape) -> None:
    directory = make_policy(tmp_path / "policy", 3, shape)
    rows = Rows(directory)
    whole = rows.prefill([0, 0, 0], [len(row) for row in ROWS])
    for row, logits in zip(ROWS, whole, strict=True):
        assert torch.allclose(logits, reference_logits(directory, row), atol=1e-5, rtol=0)


def test_chunks_and_single_tokens_give_the_same_as_the_whole(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policy", 4)
    rows = Rows(directory)
    first = rows.prefill([0, 0, 0], [50, 5, 20])
    second = rows.prefill([50, 5, 20], [70, 5, 33])
    assert torch.allclose(torch.cat((first[0], second[0])), reference_logits(directory, ROWS[0]), atol=1e-5)
    assert torch.allclose(torch.cat((first[2], second[1])), reference_logits(directory, ROWS[2]), atol=1e-5)
    for step in range(3):
        decoded = rows.decode([100 + step] * 3, [70 + step, 5 + step, 33 + step])
        for row, logits in zip(ROWS, decoded, strict=True):
            tokens = [*row, *range(100, 101 + step)]
            assert torch.allclose(logits, reference_logits(directory, tokens)[-1], atol=1e-5)


def test_a_reused_slot_shows_nothing_of_the_sequence_before(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policy", 5)
    rows = Rows(directory)
    rows.prefill([0, 0, 0], [70, 5, 33])
    for slot in Rows.slots:
        rows.cache.begin(slot, 0)
    rows.prefill([0, 0, 0], [3, 3, 3])
    logits = rows.decode([11, 12, 13], [3, 3, 3])
    for row, token, found in zip(ROWS, (11, 12, 13), logits, strict=True):
        assert torch.allclose(found, reference_logits(directory, [*row[:3], token])[-1], atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", ["MambaForCausalLM"]),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("use_sliding_window", True),
        ("hidden_act", "gelu"),
        ("vocab_size", "many"),
        ("num_attention_heads", None),
    ],
)
def test_models_that_it_would_run_wrongly_are_refused(tmp_path: Path, key: str, value: object) -> None:
    directory = make_policy(tmp_path / "policy", 1)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UnsupportedModel):
        load_config(directory)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    directory = make_policy(tmp_path / "policy", 1)
    path = directory / "model.safetensors"
    good = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    for change, message in (
        (lambda t: {**t, name: t[name][:-1].contiguous()}, "the config says"),
        (lambda t: {key: value for key, value in t.items() if key != name}, "is missing"),
        (lambda t: {**t, name: torch.full_like(t[name], float("nan"))}, "not finite"),
    ):
        tensors: dict[str, torch.Tensor] = change(dict(good))  # type: ignore[no-untyped-call]
        save_file(tensors, path)
        with pytest.raises(BadWeights, match=message):
            load_weights(directory)
    path.write_bytes(b"nothing")
    with pytest.raises(BadWeights, match="cannot be read"):
        load_weights(directory)


def test_reserved_memory_is_not_touched_memory() -> None:
    config = load_config_of(Shape(layers=8, kv_heads=8, heads=8, head_dim=64))
    before = _resident_bytes()
    cache = KeyValueCache(config, 64, 512)
    assert cache.data.numel() * 4 == 1 << 30
    assert _resident_bytes() - before < 1 << 27


def load_config_of(shape: Shape) -> ModelConfig:
    return ModelConfig(
        shape.architecture, 300, shape.hidden, shape.inner, shape.layers, shape.heads, shape.kv_heads,
        shape.head_dim, shape.context, 1e4, 1e-6, True, True,
    )  # fmt: skip


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    "slots",
    [[0, 1, 2], [5, 6, 9, 10], [3], [2, 3, 40, 41, 60], list(range(0, 63, 6)), [*range(0, 50, 10), 51, 53]],
    ids=["a run", "small gaps", "one", "segments", "all over", "segments with gaps"],
)
def test_rows_attend_to_their_own_slot_wherever_it_lies(slots: list[int]) -> None:
    kv_heads, groups, dim, max_len = 2, 3, 8, 20
    config = ModelConfig("m", 10, 48, 8, 1, kv_heads * groups, kv_heads, dim, 64, 1e4, 1e-6, True, True)
    cache = KeyValueCache(config, 64, 32)
    generator = torch.Generator().manual_seed(1)
    cache.data.copy_(torch.randn(cache.data.shape, generator=generator))
    lengths = [1 + (7 * slot) % max_len for slot in slots]
    for slot, length in zip(slots, lengths, strict=True):
        cache.begin(slot, length)
    query = torch.randn(len(slots), kv_heads * groups, dim, generator=generator)
    keys, values = cache.data[0]
    found = decode_attention(np.array(slots), max_len, cache)(query, keys, values)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        for head in range(kv_heads * groups):
            own = slot, head // groups, slice(length)
            weights = torch.softmax(keys[own] @ query[row, head], dim=0)
            expected = weights @ values[own]
            assert torch.allclose(found[row, head * dim : (head + 1) * dim], expected, atol=1e-5)
