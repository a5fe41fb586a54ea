"""Calls become rows of tokens: what continues a row, and what begins one."""

from model_gateway.domain.conversations import CallTokens, rows_of


def call(prompt: list[int], sampled: list[int]) -> CallTokens:
    return CallTokens(prompt, sampled)


def test_a_call_that_repeats_all_tokens_of_a_row_continues_it() -> None:
    calls = [call([1, 2], [3]), call([1, 2, 3, 4], [5]), call([1, 2, 3, 4, 5, 6], [7])]
    assert rows_of(calls) == [[0, 1, 2]]


def test_forks_parallel_calls_and_compaction_are_rows_of_their_own() -> None:
    calls = [
        call([1, 2], [3]),
        call([1, 2, 3, 4], [5]),  # continues 0
        call([1, 2, 3, 9], [8]),  # forks after 0, whose row has gone on
        call([50], [51]),  # a sub-agent
        call([1, 2, 3, 4, 5, 6], [7]),  # continues 1
        call([50, 51, 52], [53]),  # the sub-agent goes on
        call([1, 99], [7]),  # a compacted context
    ]
    assert rows_of(calls) == [[0, 1, 4], [2], [3, 5], [6]]


def test_equal_calls_at_once_are_two_rows() -> None:
    assert rows_of([call([1], [2]), call([1], [3]), call([1, 3, 4], [5])]) == [[0], [1, 2]]


def test_the_longest_row_that_is_repeated_is_continued() -> None:
    calls = [call([1], [2]), call([1, 2, 3], [4]), call([1], [2]), call([1, 2, 3, 4, 5], [6])]
    assert rows_of(calls) == [[0, 1, 3], [2]]


def test_a_call_without_tokens_continues_nothing_and_nothing_continues_it() -> None:
    assert rows_of([call([], []), call([1], [2]), call([], [])]) == [[0], [1], [2]]
