"""Reading nested values of a request; every error names the place, as `input[2].content[0].text`."""

from collections.abc import Iterator, Mapping
from typing import Any

from model_gateway.domain.errors import BadRequest, Unsupported, WrongType


class Place:
    """A value of a request and where it stands."""

    def __init__(self, value: Any, where: str) -> None:
        self.value = value
        self.where = where

    def text(self, name: str) -> str:
        """A string that must be there."""
        found = self.mapping().get(name)
        if not isinstance(found, str):
            raise WrongType(f"{self.where}.{name} is {found!r:.80}, expected a string", param=self.at(name))
        return found

    def optional_text(self, name: str) -> str | None:
        """A string, or None where there is none."""
        return None if self.mapping().get(name) is None else self.text(name)

    def object(self, name: str) -> dict[str, Any]:
        """An object that must be there."""
        found = self.mapping().get(name)
        if not isinstance(found, dict):
            raise WrongType(f"{self.where}.{name} is {found!r:.80}, expected an object", param=self.at(name))
        return found

    def mapping(self) -> Mapping[str, Any]:
        """The value, which must be an object."""
        if not isinstance(self.value, dict):
            raise WrongType(f"{self.where} is {self.value!r:.80}, expected an object", param=self.where)
        return self.value

    def __getitem__(self, name: str) -> "Place":
        return Place(self.mapping().get(name), self.at(name))

    def each(self) -> Iterator["Place"]:
        """The elements of the value, which must be an array."""
        if not isinstance(self.value, list):
            raise WrongType(f"{self.where} is {self.value!r:.80}, expected an array", param=self.where)
        for index, one in enumerate(self.value):
            yield Place(one, f"{self.where}[{index}]")

    def at(self, name: str) -> str:
        """Where a field of this object stands."""
        return f"{self.where}.{name}"

    def wrong(self, name: str, expected: str) -> BadRequest:
        """The error for a field with a value that cannot be."""
        found = self.mapping().get(name)
        return BadRequest(f"{self.at(name)} is {found!r:.80}; {expected}", param=self.at(name))

    def empty(self) -> BadRequest:
        """The error for an array that needs an element."""
        return BadRequest(f"{self.where} is empty; it needs at least one element", param=self.where)

    def unsupported(self, name: str, why: str) -> Unsupported:
        """The error for a field with a value that cannot be honoured here."""
        found = self.mapping().get(name)
        return Unsupported(f"{self.at(name)} is {found!r:.80}: {why}", param=self.at(name))

    def only(self, allowed: frozenset[str]) -> None:
        """Raises Unsupported for a field that this place has and that is not honoured."""
        for name, value in self.mapping().items():
            if name not in allowed and value is not None:
                raise self.unsupported(
                    name, f"not honoured here; leave it out ({', '.join(sorted(allowed))})"
                )


def joined_text(place: Place, kinds: tuple[str, ...], why: str) -> str:
    """A string, or the text of parts of those types, joined."""
    if isinstance(place.value, str):
        return place.value
    texts = []
    for part in place.each():
        if part.mapping().get("type") not in kinds:
            raise part.unsupported("type", why)
        texts.append(part.text("text"))
    return "".join(texts)
