"""What the categories draw from, and how they say what is right."""

from typing import Final

from ..problems import Want

PEOPLE: Final = (
    "bruno",
    "clara",
    "dario",
    "elena",
    "farid",
    "greta",
    "hanna",
    "ivo",
    "jonas",
    "karin",
    "lea",
    "milan",
)
RULES: Final = (
    "The machine is yours: the tools open its apps and its shell. What is not asked for stays as it is; "
    "scratch files go to /tmp. Say so when it is done."
)


def is_at(path: str, text: str) -> Want:
    """A file is at a path."""
    return Want(f"file:{path}", {"text": text})


def is_gone(path: str) -> Want:
    """No file is at a path."""
    return Want(f"file:{path}", None)


def moved(source: str, target: str, text: str) -> tuple[Want, Want]:
    """A file is at another path, and no more where it was."""
    return is_at(target, text), is_gone(source)


def is_sent(to: str, subject: str, body: str) -> Want:
    """A message of these words was sent, once."""
    return Want(f"sent:{to}/{subject.casefold()}", {"body": body})


def is_noted(title: str, text: str) -> Want:
    """A note of this title says this."""
    return Want(f"note:{title}", {"text": text})


def page(*lines: str) -> str:
    """A text of lines."""
    return "\n".join(lines)
