"""Numbers and their nouns, in messages for people."""


def amount(number: int, one: str, many: str = "") -> str:
    """`1 episode`, `12 episodes`; with a verb `amount(2, "task has", "tasks have")`. many: one and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
