"""Passwords of services at Postgres: made once, private, and given to the server as verifiers."""

import base64
from pathlib import Path

import pytest
from pydantic import SecretStr

from service_kit.errors import SqlPasswordRefused
from service_kit.groups import SqlSettings
from service_kit.settings import SettingsError, load_settings
from sql_store.logins import (
    SERVICES,
    is_of,
    logins_file,
    main,
    password_file,
    read_logins,
    verifier,
    write_logins,
)

URL = "postgresql://checkpoint_registry@db.example/checkpoint_registry?sslmode=verify-full"


def test_a_verifier_is_what_postgres_makes_of_the_password() -> None:
    """Of the example in RFC 7677, section 3: user `user`, password `pencil`."""
    made = verifier("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    keys = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert made == f"SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${keys}"
    assert is_of(made, "pencil")
    assert not is_of(made, "pencils")
    spoiled = ("", made[:-4], "SCRAM-SHA-256$4096:*$x:y", "md5é")
    assert not any(is_of(one, "pencil") for one in spoiled)


def test_passwords_are_made_once_private_and_renewed_one_by_one(tmp_path: Path) -> None:
    write_logins(tmp_path)
    files = [*(password_file(tmp_path, name) for name in SERVICES), logins_file(tmp_path)]
    before = [file.read_bytes() for file in files]
    write_logins(tmp_path)
    assert [file.read_bytes() for file in files] == before
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert not any(password.strip() in before[-1] for password in before[:-1])

    verifiers = read_logins(write_logins(tmp_path, renew=["model_gateway"]))
    pairs = zip(files, before, strict=True)
    renewed = [file for file, old in pairs if file.read_bytes() != old]
    assert renewed == [password_file(tmp_path, "model_gateway"), logins_file(tmp_path)]
    for name, one in verifiers.items():
        assert is_of(one, password_file(tmp_path, name).read_text().strip())


def test_the_command_makes_them_and_refuses_a_name_that_is_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["logins", str(tmp_path)])
    main()
    assert capsys.readouterr().out == f"{tmp_path}/provision/logins.json\n"
    monkeypatch.setattr("sys.argv", ["logins", str(tmp_path), "--renew", "nats"])
    with pytest.raises(SystemExit):
        main()
    assert "'scenario_runner', 'trajectory_store'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b'{"a": 1}', b"\xff"])
def test_what_is_no_file_of_logins_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    logins_file(tmp_path).parent.mkdir()
    logins_file(tmp_path).write_bytes(content)
    logins_file(tmp_path).chmod(0o600)
    with pytest.raises(SqlPasswordRefused, match=r"logins\.json is no file of logins"):
        write_logins(tmp_path)


def with_password(tmp_path: Path, content: bytes, mode: int = 0o600) -> SqlSettings:
    file = tmp_path / "postgres.password"
    file.write_bytes(content)
    file.chmod(mode)
    return SqlSettings(url=SecretStr(URL), password_file=file)


def test_the_password_of_the_file_goes_into_the_url(tmp_path: Path) -> None:
    settings = with_password(tmp_path, b"a/b:c@d\n", 0o640)
    expected = URL.replace("@db", ":a%2Fb%3Ac%40d@db")
    assert settings.url_for("checkpoint_registry") == expected


@pytest.mark.parametrize(("content", "mode", "why"), [
    (b"secret", 0o604, "other users can open"), (b"\n", 0o600, "no password in one line"),
    (b"a\nb", 0o600, "no password in one line"), (b"\xff", 0o600, "no password in one line"),
])  # fmt: skip
def test_a_file_that_holds_no_private_password_is_refused(
    content: bytes, mode: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(SqlPasswordRefused, match=why):
        with_password(tmp_path, content, mode).url_for("checkpoint_registry")


OTHERS = ["", "sqlite:///x.sqlite", "postgresql://db/x", "postgresql://u:secret-1@db/x"]


@pytest.mark.parametrize("url", OTHERS)
def test_a_file_of_a_password_needs_a_login_without_one(url: str) -> None:
    environ = {"UPCYCLE_SQL_URL": url, "UPCYCLE_SQL_PASSWORD_FILE": "/run/keys/postgres.password"}
    with pytest.raises(SettingsError, match="UPCYCLE_SQL_PASSWORD_FILE is for a UPCYCLE_SQL_URL") as refused:
        load_settings(SqlSettings, environ=environ)
    assert "secret-1" not in str(refused.value)


def test_an_empty_variable_names_no_file() -> None:
    environ = {"UPCYCLE_SQL_URL": URL, "UPCYCLE_SQL_PASSWORD_FILE": ""}
    assert load_settings(SqlSettings, environ=environ).url_for("x") == URL
