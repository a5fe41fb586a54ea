"""A tiny policy of random weights: a folder as transformers and our chat format read it."""

import filecmp
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from chat_format import ChatFormat
from policy_files import tensors_of_directory
from policy_files.tiny_format import rendered
from policy_files.tiny_policy import create_tiny

TEXTS = ["Alert: amber-cart is failing. ", "service: amber-cart cause: out_of_memory", "search_logs"]


def test_transformers_loads_every_tensor_and_computes(tmp_path: Path) -> None:
    made = create_tiny(tmp_path, TEXTS)
    model, found = Qwen3ForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    assert model.num_parameters() == made.num_parameters
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, made.vocabulary)
    assert bool(torch.isfinite(logits).all())
    assert model.model.norm.weight.min().item() == 1.0
    deviation = model.model.layers[0].mlp.up_proj.weight.std().item()
    assert 0.079 < deviation < 0.081


def test_the_platform_reads_its_tensors_and_its_words_are_few_tokens(tmp_path: Path) -> None:
    create_tiny(tmp_path, TEXTS)
    assert len(tensors_of_directory(tmp_path)) == 46
    chat = ChatFormat.load(tmp_path)
    answer = TEXTS[1]
    assert chat.decode(chat.encode(answer)) == answer
    assert len(chat.encode(answer)) <= 6
    assert chat.decode(chat.encode("ünknown ⚙")) == "ünknown ⚙"
    call = '<tool_call>\n{"name":"search_logs","arguments":{"service":"amber-cart"}}\n</tool_call>'
    assert chat.parse(chat.encode(call)).tool_calls[0].arguments == {"service": "amber-cart"}


def test_equal_texts_and_seed_give_equal_files_and_another_seed_other_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        create_tiny(tmp_path / name, TEXTS, seed=seed)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", names, shallow=False)[0] == names
    _, differing, _ = filecmp.cmpfiles(tmp_path / "a", tmp_path / "c", names, shallow=False)
    assert differing == ["model.safetensors"]


def test_a_demonstration_is_learnt_as_the_model_reads_it() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "stock", "arguments": '{"item": "figs"}'}}
    messages = [
        {"role": "user", "content": "Pack figs"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    tool = {"type": "function", "function": {"name": "stock", "parameters": {"properties": {"item": {}}}}}
    assert rendered({"messages": messages, "tools": [tool]}) == (
        "<|im_start|>system\nTools:\nstock(item)<|im_end|>\n<|im_start|>user\nPack figs<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name":"stock","arguments":{"item":"figs"}}\n</tool_call><|im_end|>\n'
    )


@pytest.mark.parametrize(
    "line", [7, {"text": "x"}, {"messages": []}, {"messages": [7]}, {"messages": [{"role": "king"}]}]
)
def test_what_is_no_conversation_is_not_read_as_one(line: object) -> None:
    assert rendered(line) is None
