"""`upcycle set`: keys come from a prompt, a file or standard input, and lie in a file of mode 0600."""

import io
import os
import pty
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from upcycle.cli.main import run

KEY = "sk-live-0123456789"
UPCYCLE = str(Path(sys.executable).parent / "upcycle")


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the profile of a new home folder will be."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "UPCYCLE_PROFILE", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".config" / "upcycle" / "config.toml"


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What standard input holds, which is no terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def mode(path: Path) -> int:
    """Who may do what."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_from_standard_input_lies_in_a_file_of_its_user_alone(
    profile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.parent.mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        typed(monkeypatch, f"{KEY}\n")
        assert run(["set", "OPENAI_API_KEY"]) == 0
    finally:
        os.umask(before)
    assert (mode(profile), mode(profile.parent)) == (0o600, 0o700)
    assert tomllib.loads(profile.read_text()) == {"keys": {"OPENAI_API_KEY": KEY}}
    assert run(["set", "--list"]) == run(["set", "--list", "--json"]) == run(["config", "show"]) == 0
    printed = capsys.readouterr()
    assert KEY not in printed.out + printed.err
    assert "OPENAI_API_KEY  keys.OPENAI_API_KEY  set" in printed.out


@pytest.mark.parametrize(
    "arguments", [["OPENAI_API_KEY", KEY], [f"OPENAI_API_KEY={KEY}"], ["OPENAI_API_KEY", "--value", KEY]]
)
def test_a_value_on_the_command_line_is_refused_and_not_repeated(
    profile: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(["set", *arguments]) == 2
    said = capsys.readouterr().err
    assert "a value of OPENAI_API_KEY on the command line is seen in the shell's history" in said
    assert KEY not in said
    assert not profile.exists()


def test_the_seeds_name_of_the_key_is_answered_with_ours(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["set", "HUD_API_KEY=***"]) == 2
    assert "type `upcycle set UPCYCLE_API_KEY`" in capsys.readouterr().err


def test_other_lines_and_comments_stay(profile: Path, tmp_path: Path) -> None:
    profile.parent.mkdir(parents=True)
    profile.write_text('# mine\n[keys]\nOPENAI_API_KEY = "old"  # work\n\n[up]\nmodel = "m"\n')
    profile.chmod(0o600)
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "host").write_text("team.example\n")
    (tmp_path / "offset").write_text("100")
    for name, file in (
        ("OPENAI_API_KEY", "key"),
        ("GEMINI_API_KEY", "key"),
        ("platform.host", "host"),
        ("UPCYCLE_UP_PORT_OFFSET", "offset"),
    ):
        assert run(["set", name, "--from-file", file]) == 0
    assert tomllib.loads(profile.read_text()) == {
        "keys": {"OPENAI_API_KEY": KEY, "GEMINI_API_KEY": KEY},
        "up": {"model": "m", "port_offset": 100},
        "platform": {"host": "team.example"},
    }
    assert profile.read_text().startswith("# mine\n")
    assert run(["set", "--remove", "OPENAI_API_KEY"]) == 0
    assert tomllib.loads(profile.read_text())["keys"] == {"GEMINI_API_KEY": KEY}
    assert run(["set", "--remove", "OPENAI_API_KEY"]) == 2


def test_a_profile_that_is_a_link_stays_one(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "dotfiles.toml"
    real.touch(mode=0o600)
    profile.parent.mkdir(parents=True)
    profile.symlink_to(real)
    typed(monkeypatch, KEY)
    assert run(["set", "OPENAI_API_KEY"]) == 0
    assert profile.is_symlink()
    assert KEY in real.read_text()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("OPENAI_KEY", KEY, "'OPENAI_KEY' is no setting of the profile; did you mean OPENAI_API_KEY?"),
        ("eval.group_size", "3", "is no setting of the profile"),
        ("OPENAI_API_KEY", " \n", "OPENAI_API_KEY: nothing was given"),
        ("OPENAI_API_KEY", f"{KEY}\n{KEY}", "OPENAI_API_KEY: lines or control characters were given"),
        ("OPENAI_API_KEY", f"{KEY} {KEY}", "a key has no spaces"),
        ("OPENAI_API_KEY", "schlüssel", "no letters beyond ASCII"),
        ("OPENAI_API_KEY", "k" * 5000, "5,000 characters were given; at most 4,096"),
        ("up.port_offset", "x", "up.port_offset = 'x' is no whole number"),
        ("up.engine", "vllm", "did you mean 'vllm-cpu'?"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(
    profile: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    said: str,
) -> None:
    typed(monkeypatch, text)
    assert run(["set", name]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert KEY not in printed
    assert not profile.exists()


def test_a_profile_that_others_can_open_or_that_is_written_otherwise_is_left(
    profile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.parent.mkdir(parents=True)
    profile.write_text('keys = {GEMINI_API_KEY = "g"}\n')
    profile.chmod(0o644)
    for file_mode, said in ((0o644, "others can open it (mode 0644)"), (0o600, "not changed here")):
        profile.chmod(file_mode)
        typed(monkeypatch, KEY)
        assert run(["set", "OPENAI_API_KEY"]) == 2
        assert said in capsys.readouterr().err
        assert profile.read_text() == 'keys = {GEMINI_API_KEY = "g"}\n'
    assert list(profile.parent.iterdir()) == [profile]


def test_a_file_that_is_not_there_and_no_name_are_refused(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["set", "OPENAI_API_KEY", "--from-file", "gone"]) == 2
    assert "gone cannot be read: No such file" in capsys.readouterr().err
    for arguments, said in (
        ([], "give NAME, --list, or --remove NAME"),
        (["OPENAI_API_KEY", "--list"], "NAME and --list ask for different things"),
        (["--list", "--remove", "OPENAI_API_KEY"], "--list and --remove ask for different things"),
    ):
        assert run(["set", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_a_key_that_is_typed_at_a_terminal_is_not_shown(profile: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(UPCYCLE, [UPCYCLE, "set", "OPENAI_API_KEY"])  # noqa: S606 - our own command
    shown = b""
    while b"OPENAI_API_KEY: " not in shown:  # the process that ends closes the terminal: OSError
        shown += os.read(terminal, 1024)
    os.write(terminal, f"{KEY}\n".encode())
    while True:
        try:
            shown += os.read(terminal, 1024)
        except OSError:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    assert KEY.encode() not in shown
    assert KEY in profile.read_text()
