"""Loading names the file that is wrong; rendering accepts OpenAI's shapes and refuses the rest."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.libs.chat_format.conftest import TEMPLATE, write_model_dir

from chat_format import ChatFormat, InvalidMessages, InvalidModelDir


def test_importing_brings_neither_torch_nor_transformers() -> None:
    code = "import sys, chat_format; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_stop_tokens_come_from_generation_config_and_else_from_the_tokenizer(tmp_path: Path) -> None:
    default = ChatFormat.load(write_model_dir(tmp_path / "a"))
    assert default.stop_token_ids == {default.encode("<|im_end|>")[0]}
    several = ChatFormat.load(write_model_dir(tmp_path / "b", eos=[293, 291]))
    assert several.stop_token_ids == {293, 291}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write_model_dir(tmp_path) / name).unlink()
    with pytest.raises(InvalidModelDir, match=name):
        ChatFormat.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("tokenizer_config.json", "[]", "expected an object"),
        ("tokenizer_config.json", "{}", "eos_token_id"),
        ("chat_template.jinja", "{% for", "compile"),
        ("generation_config.json", '{"eos_token_id": 9999}', "9999"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path: Path, name: str, content: str, says: str) -> None:
    (write_model_dir(tmp_path) / name).write_text(content)
    with pytest.raises(InvalidModelDir, match=says):
        ChatFormat.load(tmp_path)


def test_openai_shapes_render_like_plain_ones(chat: ChatFormat) -> None:
    def conversation(content: Any, arguments: Any) -> list[dict[str, Any]]:
        called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return [
            {"role": "user", "content": content},
            {"role": "assistant", "content": None, "tool_calls": [called]},
        ]

    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert chat.render(conversation(parts, '{"q": "é"}')) == chat.render(conversation("hello", {"q": "é"}))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "wizard", "content": "x"}],
        [{"content": "x"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}],
        [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}],
            }
        ],
    ],
)
def test_an_unreadable_conversation_is_refused(chat: ChatFormat, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidMessages):
        chat.render(messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages[0].nothing.deeper }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_an_error(tmp_path: Path, template: str) -> None:
    chat = ChatFormat.load(write_model_dir(tmp_path, template=template))
    with pytest.raises(InvalidMessages):
        chat.render([{"role": "user", "content": "x"}])


def test_a_template_without_stop_token_cannot_bridge(tmp_path: Path) -> None:
    chat = ChatFormat.load(write_model_dir(tmp_path, template=TEMPLATE.replace("<|im_end|>", "</s>")))
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    with pytest.raises(InvalidMessages, match="im_end"):
        chat.bridge(history, [{"role": "user", "content": "z"}])


def test_thinking_is_left_to_the_template_unless_it_is_chosen(tmp_path: Path) -> None:
    # As Qwen3 templates do: only an explicit false closes the thinking block at once.
    template = (
        "{{ messages[-1].content }}{% if enable_thinking is defined and not enable_thinking %} b{% endif %}"
    )
    chat = ChatFormat.load(write_model_dir(tmp_path, template))
    rendered = [
        chat.render([{"role": "user", "content": "a"}], enable_thinking=chosen)
        for chosen in (None, True, False)
    ]
    assert rendered[0] == rendered[1] == chat.encode("a")
    assert rendered[2] == chat.encode("a b")
