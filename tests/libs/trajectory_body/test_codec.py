"""What is packed comes back; what is not a body is refused by one error, whatever it is."""

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from trajectory_body import MAX_PLAIN_BYTES, MalformedBody, pack, unpack
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody, Turn


def _body(num_turns: int = 2) -> TrajectoryBody:
    turns = [Turn(sampled_ids=[1, 2, 3], sampled_logprobs=[-0.5, -0.25, 0.0])] * num_turns
    return TrajectoryBody(
        episode=EpisodeIdentity(trajectory_id="traj-e", episode_id="e"), turns=turns, answer="naïve ☃"
    )


def test_a_body_comes_back_and_equal_bodies_have_equal_bytes() -> None:
    assert unpack(pack(_body())) == _body()
    assert pack(_body()) == pack(_body())


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBody):
        unpack(data)


@given(st.integers(0, 60), st.integers(1, 255))
def test_a_flipped_byte_never_raises_anything_else(position: int, flip: int) -> None:
    data = bytearray(pack(_body()))
    data[position % len(data)] ^= flip
    try:
        unpack(bytes(data))
    except MalformedBody:
        return


def test_a_frame_of_something_else_is_refused() -> None:
    with pytest.raises(MalformedBody, match="names no trajectory"):
        unpack(zstandard.ZstdCompressor().compress(b""))
    with pytest.raises(MalformedBody):
        unpack(zstandard.ZstdCompressor().compress(b"\xff\xff\xff"))


def test_a_small_object_that_claims_to_be_huge_allocates_nothing() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_PLAIN_BYTES + 1))
    assert len(bomb) < 100_000
    with pytest.raises(MalformedBody, match="claims"):
        unpack(bomb)
