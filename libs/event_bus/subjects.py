"""Subjects: how names become tokens and back."""

from urllib.parse import quote, unquote

from event_bus.errors import UnknownEvent

MAX_TOKEN_LENGTH = 200


def token(name: str) -> str:
    """`name` as one subject token: letters, digits, `_`, `-`, `~` stay, everything else becomes %XX of its
    UTF-8.
    """
    if not name:
        raise UnknownEvent("a subject token must not be empty: give the model slug or the pool")
    encoded = quote(name, safe="").replace(".", "%2E")
    if len(encoded) > MAX_TOKEN_LENGTH:
        raise UnknownEvent(
            f"subject token {name[:40]!r}... is {len(encoded)} characters long, "
            f"limit {MAX_TOKEN_LENGTH}: use a shorter slug"
        )
    return encoded


def name_of(encoded: str) -> str:
    """The name that `token` made into `encoded`."""
    return unquote(encoded)


def event_subject(verb: str, model: str) -> str:
    """`up.evt.<entity>.<verb>.<model>`."""
    return f"up.evt.{verb}.{token(model)}"


def task_subject(kind: str, pool: str) -> str:
    """`up.task.<kind>.<pool>`."""
    return f"up.task.{kind}.{token(pool)}"


def template_of(subject: str) -> str:
    """The low-cardinality name of a subject: its last token, a model or pool, becomes a placeholder."""
    head, _, _ = subject.rpartition(".")
    return f"{head}.{{pool}}" if subject.startswith("up.task.") else f"{head}.{{model}}"
