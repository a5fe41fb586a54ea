"""JSON patches, by hand from RFC 6902, and for any pair of values."""

import random
from typing import Any

import pytest

from upcycle.json_patches import difference, patched


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [{"op": "replace", "path": "/a", "value": 2}]),
        ({"a": 1, "b": 2}, {"b": 2}, [{"op": "remove", "path": "/a"}]),
        ({"b": [1]}, {"b": [1, 2]}, [{"op": "add", "path": "/b/-", "value": 2}]),
        ([1, 2, 3], [1], [{"op": "remove", "path": "/2"}, {"op": "remove", "path": "/1"}]),
        ({"a/b": {"m~n": 1}}, {"a/b": {"m~n": 2}}, [{"op": "replace", "path": "/a~1b/m~0n", "value": 2}]),
        (1, True, [{"op": "replace", "path": "", "value": True}]),
        ({"a": {}}, {"a": []}, [{"op": "replace", "path": "/a", "value": []}]),
        (None, {"a": None}, [{"op": "replace", "path": "", "value": {"a": None}}]),
    ],
)
def test_a_difference_is_what_changed(old: Any, new: Any, patch: Any) -> None:
    assert difference(old, new) == patch
    made = patched(old, patch)
    assert (made, type(made)) == (new, type(new))


def any_value(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [any_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(["a", "b/c", "d~e", "", "0"]): any_value(rng, depth - 1) for _ in range(4)}
    return rng.choice([None, True, False, 0, 1, 1.0, "", "x"])


@pytest.mark.parametrize("seed", range(200))
def test_a_patch_makes_the_new_value_and_leaves_the_old_one(seed: int) -> None:
    rng = random.Random(seed)
    old, new = any_value(rng), any_value(rng)
    before = repr(old)
    assert repr(patched(old, difference(old, new))) in (repr(new), repr(_in_order(new, old)))
    assert patched(old, difference(old, new)) == new
    assert repr(old) == before


def _in_order(new: Any, old: Any) -> Any:
    """With the keys of `old` first, as a patch leaves them."""
    if isinstance(new, dict) and isinstance(old, dict):
        keys = [*(key for key in old if key in new), *(key for key in new if key not in old)]
        return {key: _in_order(new[key], old.get(key)) for key in keys}
    if isinstance(new, list) and isinstance(old, list):
        return [_in_order(one, old[at] if at < len(old) else None) for at, one in enumerate(new)]
    return new


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "remove", "path": "/b"}],
        [{"op": "replace", "path": "/b", "value": 1}],
        [{"op": "add", "path": "/a/0/1", "value": 1}],
        [{"op": "remove", "path": ""}],
        [{"op": "remove", "path": "/a/3"}],
        [{"path": "/a"}],
        ["add"],
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch: Any) -> None:
    with pytest.raises(ValueError, match="does not fit the value"):
        patched({"a": [1]}, patch)
