"""Subjects of the bus that are read back."""

from identities import subjects


def test_a_mark_of_no_dead_letter_is_none() -> None:
    assert subjects.handled_number(subjects.handled(17)) == 17
    assert subjects.handled_number(subjects.handled(17).replace("17", "abc")) is None
    assert subjects.handled_number(subjects.handled(-1)) is None
