"""`upcycle models create`: what it makes of which files, and what it refuses."""

import json
from pathlib import Path

import pytest

from chat_format import ChatFormat
from upcycle.cli.main import run

LINE = {"messages": [{"role": "assistant", "content": 'quantum "ledger"\nsynchrotron'}], "task": "f" * 64}


def test_of_json_lines_it_learns_the_texts_and_not_their_spelling_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "demonstrations.jsonl"
    lines.write_text((json.dumps(LINE) + "\n\n") * 3)
    assert run(["models", "create", str(tmp_path / "tiny"), "--tiny", "--text", str(lines), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    chat = ChatFormat.load(tmp_path / "tiny")
    assert (made["kind"], made["vocabulary"]) == ("model_folder", chat.vocab_size)
    assert len(chat.encode("synchrotron")) == 1
    assert len(chat.encode("\\nsynchrotron")) > 1
    assert len(chat.encode("ffff")) > 1
    assert len(chat.encode("assistant\n")) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new", "--text", "a.txt"], "only a tiny model can be made"),
        (["new", "--tiny"], "the tokenizer has nothing to learn from"),
        (["new", "--tiny", "--text", "absent.txt"], "--text absent.txt cannot be read"),
        (["new", "--tiny", "--text", "empty.txt"], "--text empty.txt is empty"),
        (["new", "--tiny", "--text", "image.png"], "--text image.png cannot be read"),
        (["new", "--tiny", "--text", "odd.jsonl"], "--text odd.jsonl is not JSON lines"),
        (["full", "--tiny", "--text", "a.txt"], "full exists and is not an empty folder"),
        (["a.txt", "--tiny", "--text", "a.txt"], "a.txt exists and is not an empty folder"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in (
        ("a.txt", b"text"),
        ("empty.txt", b" \n"),
        ("image.png", b"\xff\xd8"),
        ("odd.jsonl", b"{"),
    ):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert run(["models", "create", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
