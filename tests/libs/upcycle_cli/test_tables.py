"""Tables of what others wrote: a reason, a name, a principal."""

import pytest

from upcycle.cli.models import print_table


def test_what_others_wrote_is_text_and_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = ["why [/not]", "[bold]loud[/bold]", "a \x1b[2J b", "[link=http://x]here[/link]"]
    print_table(("who", "why"), [("ada", reason) for reason in reasons])
    shown = capsys.readouterr().out
    assert "why [/not]" in shown
    assert "[bold]loud[/bold]" in shown
    assert "[link=http://x]here[/link]" in shown
    assert "\x1b" not in shown
