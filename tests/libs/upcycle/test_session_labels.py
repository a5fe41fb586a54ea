"""Labels of recorded sessions: which are taken, and how each other one is refused."""

import pytest

from upcycle.session_labels import MAX_CHARS, MAX_LABELS, checked, read_assignments


def test_labels_are_a_set_whatever_their_order() -> None:
    assert read_assignments("flow=refund, env=prod") == ("env:prod", "flow:refund")
    assert read_assignments("env=prod,flow=refund") == checked(["flow:refund", "env:prod"])
    assert read_assignments(f"{'n' * MAX_CHARS}={'v' * MAX_CHARS}") == (f"{'n' * 64}:{'v' * 64}",)
    assert read_assignments("a.b_c-1=0") == ("a.b_c-1:0",)
    assert len(read_assignments(",".join(f"n{n}=v" for n in range(MAX_LABELS)))) == MAX_LABELS
    assert checked([]) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no label: write name=value"),
        ("env", "'env' is no label: write name=value"),
        ("env=prod,", "'' is no label"),
        ("=prod", "'' is no name of a label: it is 1 to 64 of a-z, digits, '.', '_' and '-'"),
        ("Env=prod", "'Env' is no name of a label"),
        ("env=", "label env is '': a value is 1 to 64 of"),
        ("env=a=b", "label env is 'a=b'"),
        ("env=a:b", "label env is 'a:b'"),
        (f"env={'v' * 65}", "a value is 1 to 64"),
        (f"{'n' * 65}=v", "no name of a label"),
        ("env=ä", "label env is 'ä'"),
        ("env=a,env=b", "label 'env' is given twice: a session has one value of it"),
        ("env=a,env=a", "label 'env' is given twice"),
        (",".join(f"n{n}=v" for n in range(9)), "9 labels, and a session has at most 8: leave some out"),
    ],
)
def test_what_is_no_label_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its text is compared
        read_assignments(text)
    assert message in str(refused.value)
