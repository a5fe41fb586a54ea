"""Shares of tasksets: how they are written, and which taskset gives the next group."""

from fractions import Fraction

import pytest

from upcycle.mixing import MixedTaskset, next_taskset, parse_mixed, with_own


@pytest.mark.parametrize(
    ("text", "share"),
    [("b:share=0.3", "3/10"), ("b:share=.25", "1/4"), ("b:share=1/3", "1/3"), ("b:share=1", "1")],
)
def test_a_share_is_exact(text: str, share: str) -> None:
    assert parse_mixed(text) == MixedTaskset("b", Fraction(share))


@pytest.mark.parametrize("text", ["b", "b:0.3", "b:share=", ":share=0.3", "b c:share=0.3", "b:part=0.3"])
def test_what_is_no_share_of_a_taskset_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not TASKSET:share=SHARE$"):
        parse_mixed(text)


@pytest.mark.parametrize("share", ["0", "1.5", "-0.1", "nan", "inf", "1e-3", "1/0", "0/1", "3/2", "x"])
def test_a_share_is_above_0_and_at_most_1(share: str) -> None:
    with pytest.raises(ValueError, match=rf"share of 'b' must be above 0 and at most 1.*got {share}$"):
        parse_mixed(f"b:share={share}")


def test_a_run_has_what_the_others_leave() -> None:
    assert with_own("a", ()) == (MixedTaskset("a", Fraction(1)),)
    shares = [one.share for one in with_own("a", ("b:share=0.1", "c:share=0.2", "d:share=1/3"))]
    assert shares == [Fraction(11, 30), Fraction(1, 10), Fraction(1, 5), Fraction(1, 3)]
    for mix in (("b:share=1",), ("b:share=0.7", "c:share=0.3"), ("b:share=0.9", "c:share=0.9")):
        with pytest.raises(ValueError, match=r"leaves nothing for the taskset of the run, 'a'"):
            with_own("a", mix)


def test_the_taskset_that_is_furthest_behind_its_share_gives_the_next_group() -> None:
    """By hand, with 1/2, 1/3 and 1/6: six groups, and then the same again."""
    shares, counts, order = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)], [0, 0, 0], []
    for _ in range(12):
        order.append(next_taskset(shares, counts))
        counts[order[-1]] += 1
    assert order == [0, 1, 0, 2, 1, 0] * 2
    assert counts == [6, 4, 2]


def test_no_taskset_is_ever_a_group_ahead_of_its_share_nor_two_behind() -> None:
    parts = [Fraction(n, 136) for n in range(1, 17)]
    for shares in ([Fraction(9, 10), Fraction(1, 10)], [Fraction(1, 3)] * 3, parts):
        counts = [0] * len(shares)
        for num in range(1, 2001):
            counts[next_taskset(shares, counts)] += 1
            ahead = [count - share * num for share, count in zip(shares, counts, strict=True)]
            assert max(ahead) < 1
            assert min(ahead) > -2
        assert all(abs(one) < 2 for one in ahead)
