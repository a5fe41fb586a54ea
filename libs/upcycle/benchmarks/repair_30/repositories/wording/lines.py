"""Words laid out in lines."""


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many letters, broken between words; a longer word has a line of its own."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def counted(text: str) -> dict[str, int]:
    """How often each word occurs, without its case, the most frequent first, then by the alphabet."""
    found: dict[str, int] = {}
    for word in text.lower().split():
        found[word] = found.get(word, 0) + 1
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))
