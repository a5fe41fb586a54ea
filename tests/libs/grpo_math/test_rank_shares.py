"""Rows for several processes, and the two kernels of packed attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.libs.grpo_math.test_packing import family

from grpo_math.flex_attention import flex_mask, flex_packed_attention
from grpo_math.packed_attention import packed_attention
from grpo_math.packing import TrainingRow, microbatches, pack, rank_shares, sorted_for_sharing


def batch(sizes: list[int]) -> list[TrainingRow]:
    """Groups of the given numbers of members."""
    return [
        row
        for number, members in enumerate(sizes)
        for row in family(number, members, prefix=4 + 5 * number, group=f"g{number}")
    ]


def unique_tokens(rows: list[TrainingRow]) -> int:
    cuts = microbatches(rows, max_tokens=1 << 20) if rows else []
    return sum(cut.num_unique_tokens for cut in cuts)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 4), st.randoms())
def test_every_row_is_in_one_share_whatever_the_order(sizes: list[int], ranks: int, random: object) -> None:
    rows = batch(sizes)
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    shares = rank_shares(shuffled, ranks)
    assert len(shares) == ranks
    assert sorted(row.row_id for share in shares for row in share) == sorted(row.row_id for row in rows)
    again = rank_shares(rows, ranks)
    assert [[row.row_id for row in s] for s in shares] == [[row.row_id for row in s] for s in again]


def test_shares_are_balanced_and_keep_groups_together() -> None:
    rows = batch([4, 4, 4, 4, 4, 4])
    shares = rank_shares(rows, 2)
    loads = [unique_tokens(share) for share in shares]
    assert max(loads) <= 1.25 * min(loads)
    homes = {row.group_id: {n for n, share in enumerate(shares) if row in share} for row in rows}
    assert sum(len(home) > 1 for home in homes.values()) <= 1


def test_one_row_leaves_the_other_ranks_without() -> None:
    [only] = batch([1])
    assert rank_shares([only], 3) == [[only], [], []]


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_flex_attention_sees_what_buckets_see(share_prefixes: bool) -> None:
    packed = pack(sorted_for_sharing(batch([4, 2, 3])), share_prefixes=share_prefixes)
    generator = torch.Generator().manual_seed(0)
    tokens = packed.num_unique_tokens
    query = torch.randn(1, 4, tokens, 8, generator=generator)
    key, value = torch.randn(2, 1, 2, tokens, 8, generator=generator)
    expected = packed_attention(query, key, value, packed.attention, 0.3)
    found = flex_packed_attention(query, key, value, flex_mask(packed.attention), 0.3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
