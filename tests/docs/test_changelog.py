"""The changelog says each thing once: git's union of two branches may keep an entry that both moved."""

import re
from collections import Counter

from tests.docs.checks import ROOT

BEGINNING = 100
"""Characters by which entries are told apart."""


def test_no_entry_of_the_changelog_stands_twice() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.split("\n## ")[1]
    entries = re.findall(r"^- (.*)", unreleased, re.MULTILINE)
    assert entries, "the first section of CHANGELOG.md has no entries"
    many = Counter(entry[:BEGINNING] for entry in entries)
    assert [entry for entry, times in many.items() if times > 1] == []
