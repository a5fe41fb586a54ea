"""`upcycle models create`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json
from upcycle.cli.platform_needed import require_platform
from upcycle.errors import UpcycleError


class ModelRefused(UpcycleError, ValueError):
    """No model can be made so, and nothing was written."""

    kind = "model_refused"


def create(
    folder: Path,
    /,
    *,
    tiny: bool = False,
    texts: Annotated[tuple[Path, ...], Parameter(name="--text")] = (),
    seed: int = 0,
    as_json: JsonFlag = False,
) -> int:
    """Make a folder with a tiny Qwen3 of random weights, whose tokenizer fits your environment.

    It knows nothing: train it on demonstrations first (`upcycle train NAME --sft FILE`).

    :param folder: to make; `upcycle up --model NAME --model-dir FOLDER` and `models import` take it.
    :param tiny: must be given: models of another size are imported, not made.
    :param texts: file with what the model will read and write: demonstrations (.jsonl), tasks; several times.
    :param seed: of the weights.
    :param as_json: one JSON line.
    """
    require_platform("models create")
    from policy_files.tiny_policy import create_tiny

    if not tiny:
        raise ModelRefused(
            "only a tiny model can be made", "give --tiny, or import one: upcycle models import"
        )
    if not texts:
        raise ModelRefused(
            "the tokenizer has nothing to learn from",
            "name what the model will read: --text demonstrations.jsonl",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelRefused(f"{folder} exists and is not an empty folder", "name another one")
    made = create_tiny(folder, [one for path in texts for one in _texts_of(path)], seed=seed)
    if as_json:
        sizes = {"num_parameters": made.num_parameters, "vocabulary": made.vocabulary}
        print_json("model_folder", {"folder": str(folder), **sizes})
    else:
        print(f"{folder}: {made.num_parameters:,} parameters, vocabulary {made.vocabulary}")
    return Exit.OK


def _texts_of(path: Path) -> list[str]:
    """A file as texts: of JSON lines their strings, since a model reads no quotes and escapes."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRefused(f"--text {path} cannot be read: {error}") from error
    if not text.strip():
        raise ModelRefused(f"--text {path} is empty")
    if path.suffix != ".jsonl":
        return [text]
    try:
        lines = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise ModelRefused(f"--text {path} is not JSON lines: {error}") from error
    return [one for line in lines for one in _texts_of_line(line)]


def _texts_of_line(line: Any) -> Iterator[str]:
    """A conversation as the model will read it, so that the marks around a message are few tokens; of
    anything else the strings."""
    from policy_files.tiny_format import rendered

    conversation = rendered(line)
    return _strings(line) if conversation is None else iter((conversation,))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            if key != "task":  # a digest, which no model reads
                yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
