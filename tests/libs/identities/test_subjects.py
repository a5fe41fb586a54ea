"""Subjects of the bus that are read back."""

from identities import subjects


    assert subjects.handled_number(subjects.handled(17).replace("17", "abc")) is None
    assert subjects.handled_number(subjects.handled(-1)) is None
