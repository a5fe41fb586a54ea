"""The files of a tiny policy apart from its weights: tokenizer, chat template, and the small JSON files of a
Hugging Face model directory."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from chat_format import InvalidMessages
from chat_format.messages import normalise
from chat_format.template import ChatTemplate

VOCAB_SIZE = 1024
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# Cut points before byte pairs are merged. A word of a service name is always the same token, whatever stands
# beside it, so that copying a name is copying tokens; the scaffold of a tool call is a handful of tokens.
_CUTS = "|".join(
    (
        r'\n\{"name":"',
        r'","arguments":\{"?',
        r'"?\}\}\n',
        r"(?:system|user|assistant)\n",
        r"calls[ ]",
        r"[A-Za-z]+[ ]#",
        r"[ ]?[A-Za-z_]+:[ ]",
        r"[ ]?v?[0-9]{1,2}",
        r"-[a-z]+",
        r"[ ]?[A-Za-z_]+(?:\.[a-z]+)?",
        r"[ ]?[^A-Za-z0-9\s]+",
        r"\s",
    )
)

# The tools are listed by signature: a laptop policy reads them in a few tokens each.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nTools:' }}
{%- for tool in tools %}
{%- set spec = tool.function if tool.function is defined else tool %}
{{- '\\n' + spec.name + '(' + spec.parameters.properties | join(',') + ')' }}
{%- endfor %}
{%- if messages[0].role == 'system' %}{{- '\\n' + messages[0].content }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name":' + call.function.name | tojson + ',"arguments":' }}
{{- call.function.arguments | tojson(separators=(',', ':')) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
{{- '<|im_start|>user\\n' }}
{%- endif %}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def rendered(line: Any) -> str | None:
    """A demonstration ({"messages": [...], "tools": [...]}) in this format; None where it is none."""
    if not isinstance(line, dict) or not isinstance(messages := line.get("messages"), list):
        return None
    template, tools = ChatTemplate(CHAT_TEMPLATE, {}), line.get("tools") or []
    try:
        return template.render(normalise(messages), tools, add_generation_prompt=False)
    except (AttributeError, InvalidMessages):
        return None


def train_tokenizer(corpus: Iterable[str]) -> Tokenizer:
    """Byte-level BPE over the corpus: any text round-trips, the domain's words are one token each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CUTS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = len(CONTROL_TOKENS) + len(TAGS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    return tokenizer


def write_format(path: Path, tokenizer: Tokenizer, *, max_length: int = 512) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    end, pad = tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_length,
        },
    )
    _write_json(
        path / "generation_config.json",
        {"eos_token_id": end, "pad_token_id": pad, "do_sample": True, "temperature": 1.0},
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
