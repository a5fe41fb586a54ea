"""What two tasksets have and have not in common: a task is the same by its digest, called by its slug."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Task


@dataclass(frozen=True, slots=True)
class Difference:
    """By slug, in the order of the tasksets. changed: one slug, another task. renamed: one task,
    (slug before, slug now)."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    num_same: int
    is_reordered: bool

    def __str__(self) -> str:
        counts = {
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "renamed": self.renamed,
        }
        said = [f"{len(slugs)} {what}" for what, slugs in counts.items()]
        order = ", in another order" if self.is_reordered else ""
        return f"{', '.join(said)}, {self.num_same} the same{order}"

    def to_json(self) -> dict[str, Any]:
        """For a JSON line."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
            "renamed": [{"from": was, "to": now} for was, now in self.renamed],
            "same": self.num_same,
            "reordered": self.is_reordered,
        }


def difference(a: "Sequence[Task]", b: "Sequence[Task]") -> Difference:
    """From a to b."""
    before, after = {one.slug: one.digest for one in a}, {one.slug: one.digest for one in b}
    changed = tuple(slug for slug in before if slug in after and before[slug] != after[slug])
    gone = [slug for slug in before if slug not in after]
    come = [slug for slug in after if slug not in before]
    renamed = _renamed(gone, come, before, after)
    same = [slug for slug in before if after.get(slug) == before[slug]]
    return Difference(
        added=tuple(slug for slug in come if slug not in {now for _, now in renamed}),
        removed=tuple(slug for slug in gone if slug not in {was for was, _ in renamed}),
        changed=changed,
        renamed=tuple(renamed),
        num_same=len(same),
        is_reordered=same != [slug for slug in after if before.get(slug) == after[slug]],
    )


def _renamed(
    gone: Sequence[str], come: Sequence[str], before: dict[str, str], after: dict[str, str]
) -> list[tuple[str, str]]:
    waiting: dict[str, list[str]] = {}
    for slug in come:
        waiting.setdefault(after[slug], []).append(slug)
    return [(slug, waiting[digest].pop(0)) for slug in gone if waiting.get(digest := before[slug])]
