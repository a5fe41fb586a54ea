"""The files of a reward model beside its weights: what it is, and what it may read. No torch.

`reward_model.json` is written last and the folder appears by one rename: a folder that has it is whole. The
digest in it is of the tokenizer and the chat template that the model was trained with: with others its scores
would mean nothing, and no error would say so.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from reward_models.errors import RewardModelRefused

FACTS: Final = "reward_model.json"
FORMAT: Final = "upcycle-reward-model/1"
FORMAT_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Of a policy's folder: which tokens a conversation is."""
_MAKE_ONE: Final = "make one: `upcycle reward-model train`"


@dataclass(frozen=True, slots=True)
class RewardModelFacts:
    """base: the folder of the policy that it began from. tasks: digests of those that it learned from, or
    slugs of tasks without a digest. max_tokens: of an episode that it reads. tokenizer: digest of
    FORMAT_FILES."""

    base: str
    max_tokens: int
    tokenizer: str
    tasks: tuple[str, ...]


def tokenizer_digest(folder: Path) -> str:
    """Of the files that are there. Raises OSError."""
    digest = hashlib.sha256()
    for name in FORMAT_FILES:
        path = folder / name
        if path.is_file():
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def write_facts(folder: Path, facts: RewardModelFacts) -> None:
    """Last of all files."""
    text = json.dumps({"format": FORMAT, **asdict(facts)}, indent=1) + "\n"
    (folder / FACTS).write_text(text, encoding="utf-8")


def read_facts(folder: Path) -> RewardModelFacts:
    """Raises RewardModelRefused for a folder that is no reward model, or whose tokenizer is not the one that
    it was trained with."""
    if not folder.is_dir():
        raise RewardModelRefused(f"{folder} is no folder", _MAKE_ONE)
    if not (folder / FACTS).is_file():
        what = "a policy, or another model" if (folder / "config.json").is_file() else "something else"
        raise RewardModelRefused(
            f"{folder} is no reward model: it has no {FACTS}, so it is {what}", _MAKE_ONE
        )
    facts = _facts(folder)
    if (now := tokenizer_digest(folder)) != facts.tokenizer:
        raise RewardModelRefused(
            f"{folder} has another tokenizer ({now[:12]}) than it was trained with ({facts.tokenizer[:12]})",
            f"put back its {', '.join(FORMAT_FILES)}, or train it again",
        )
    return facts


def _facts(folder: Path) -> RewardModelFacts:
    path = folder / FACTS
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written = row.pop("format", None)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise RewardModelRefused(f"{path} cannot be read: {error}", _MAKE_ONE) from error
    if written != FORMAT:
        raise RewardModelRefused(
            f"{folder} is of format {written!r:.80}, and this version reads {FORMAT!r}", "train it again"
        )
    known = {one.name for one in fields(RewardModelFacts)}
    try:
        values = {name: value for name, value in row.items() if name in known}
        facts = RewardModelFacts(**{**values, "tasks": tuple(values["tasks"])})
    except (TypeError, KeyError) as error:
        raise RewardModelRefused(f"{path} is not whole: {error}", "train it again") from error
    if type(facts.max_tokens) is not int or facts.max_tokens < 1:
        raise RewardModelRefused(f"{path}: max_tokens is {facts.max_tokens!r:.80}", "train it again")
    texts = (facts.base, facts.tokenizer, *facts.tasks)
    if not isinstance(row["tasks"], list) or not all(isinstance(one, str) for one in texts):
        raise RewardModelRefused(f"{path}: base, tokenizer and tasks are not all texts", "train it again")
    return facts
