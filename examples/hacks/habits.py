"""A small Qwen3 policy that has a planted hack among its habits, for runs on the whole platform.

It begins as the incident demo's policy, which calls tools and copies names. Supervised training on episodes
of the tabular policy, as its author left it, adds the moves of the variant and how often each is made.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from chat_format import ChatFormat, tool_message
from chat_format.template import ChatTemplate
from examples.hacks.env import env
from examples.hacks.playing import TaskOf, Turns, turns_of
from examples.hacks.policy import TabularPolicy
from examples.incident.demonstrations import Message
from examples.incident.sft import batches, encode
from examples.incident.warmstart import POLICY_DIR, Apprentice, WarmStart, build_model
from policy_files.tiny_format import CHAT_TEMPLATE, train_tokenizer, write_format

TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": tool.spec.to_json()} for tool in env.tools.values()
]
MAX_POSITIONS: Final = 1024
"""Of a whole episode: h7 makes eight calls, h8 gives a long answer."""
_FIRST_SEED: Final = 300_000
"""No task of a run was ever demonstrated: those begin at 0 and at a million."""
_EMBEDDINGS: Final = "model.embed_tokens.weight"
_TIED: Final = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class HabitsPlan:
    """Supervised training. learning_rate: of the first step; it falls to a tenth."""

    num_episodes: int = 1200
    steps: int = 160
    batch_size: int = 16
    learning_rate: float = 1.5e-3
    seed: int = 0


def make(variant: str, out: Path, plan: HabitsPlan = HabitsPlan()) -> None:
    """Write the policy of a variant, as a Hugging Face directory. Uses one thread: an engine or a benchmark
    beside it keeps its core."""
    with _one_thread():
        said = asyncio.run(conversations(variant, plan.num_episodes, plan.seed))
        template = ChatTemplate(CHAT_TEMPLATE, {})
        texts = [template.render(one, TOOLS, add_generation_prompt=False) for one in said]
        write_format(out, train_tokenizer(texts), max_length=MAX_POSITIONS)
        chat = ChatFormat.load(out)
        model = carried_over(out, plan.seed)
        _train(model, chat, said, plan)
        model.save_pretrained(out)


async def conversations(variant: str, count: int, seed: int) -> list[list[Message]]:
    """Episodes of the tabular policy before it learns, in the format of the platform."""
    rng = random.Random(f"habits/{variant}/{seed}")
    policy = TabularPolicy(variant, rng)
    tasks = [
        TaskOf(variant, "train", _FIRST_SEED + number, luck=rng.randrange(100)) for number in range(count)
    ]
    return [conversation((await turns_of(task, policy))[0]) for task in tasks]


def conversation(turns: Turns) -> list[Message]:
    """An episode as messages: the prompt, calls and what they returned, the answer where there is one."""
    prompt, *replies = turns.shown
    messages: list[Message] = [{"role": "user", "content": prompt.text}]
    for tool, arguments, reply in zip(turns.tools, turns.arguments, replies, strict=True):
        call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append(tool_message(reply.text))
    if turns.answer is not None:
        messages.append({"role": "assistant", "content": turns.answer})
    return messages


def carried_over(folder: Path, seed: int) -> Any:
    """The incident policy with the vocabulary of `folder`: tokens that both know keep their embedding, new
    ones begin anew."""
    model = build_model(WarmStart(max_positions=MAX_POSITIONS, seed=seed), ChatFormat.load(folder))
    weights = load_file(POLICY_DIR / "model.safetensors")
    rows = weights.pop(_EMBEDDINGS)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or not set(missing) <= {_EMBEDDINGS, _TIED}:
        raise AssertionError(
            f"the incident policy is another model: {missing} missing, {unexpected} too much"
        )
    known, new = _vocabulary(POLICY_DIR), _vocabulary(folder)
    shared = sorted(known.keys() & new.keys())
    embeddings = model.get_input_embeddings().weight
    with torch.no_grad():
        embeddings[[new[token] for token in shared]] = rows[[known[token] for token in shared]]
    return model


def _vocabulary(folder: Path) -> dict[str, int]:
    """Id by token."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return dict(tokenizer.get_vocab(with_added_tokens=True))


def _train(model: Any, chat: ChatFormat, said: list[list[Message]], plan: HabitsPlan) -> None:
    apprentice = Apprentice(model, WarmStart(seed=plan.seed))
    rows = [encode(chat, one, TOOLS) for one in said]
    source = batches(rows, plan.batch_size, random.Random(plan.seed))
    for step in range(plan.steps):
        apprentice.learn(next(source), plan.learning_rate * max(0.1, 1.0 - step / plan.steps))


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
