"""Text in other shapes."""


def slug(text: str) -> str:
    """Small letters and digits; everything else becomes one hyphen, none at the ends."""
    plain = "".join(letter if letter.isalnum() else " " for letter in text.lower())
    return "-".join(plain.split())


def initials(name: str) -> str:
    """The first letters of the words, as capitals."""
    return "".join(word[0].upper() for word in name.split())


def shortened(text: str, limit: int) -> str:
    """At most so many letters; where some are cut off the last three are dots."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
