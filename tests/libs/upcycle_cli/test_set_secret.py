"""`upcycle set secret`: a value comes from a prompt, a file or standard input, and goes to the platform or
the profile.
"""

import io
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.libs.upcycle_cli.test_set import profile as profile

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.secrets.v1 import service_pb2 as pb
from upcycle.api.secrets.v1.service_pb2_grpc import SecretServiceServicer, add_SecretServiceServicer_to_server
from upcycle.cli.main import run
from upcycle.cli.set_secret import SecretOptions, set_secret

VALUE = "canary-0123456789"


def test_a_secret_of_the_profile_is_set_listed_and_removed(
    profile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{VALUE}\n"))
    assert run(["set", "secret", "TOKEN", "--profile"]) == 0
    assert tomllib.loads(profile.read_text()) == {"secrets": {"TOKEN": VALUE}}
    assert run(["set", "secret", "--list", "--profile"]) == 0
    assert run(["set", "--list"]) == run(["config", "show"]) == 0
    assert run(["set", "secret", "--remove", "TOKEN", "--profile"]) == 0
    assert tomllib.loads(profile.read_text()) == {"secrets": {}}
    printed = capsys.readouterr()
    assert "\nTOKEN\n" in printed.out
    assert VALUE not in printed.out + printed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["TOKEN", VALUE], "a value of TOKEN on the command line is seen in the shell's history"),
        ([f"TOKEN={VALUE}"], "type `upcycle set secret TOKEN`, which asks for it"),
        ([], "give NAME, --list, --remove NAME, or --rotate"),
        (["TOKEN", "--list"], "NAME and --list ask for different things; give one of them"),
        (["A-B", "--profile"], "'A-B' is no name of a secret"),
        (["TOKEN", "--profile"], "a value of 2 characters was given"),
        (["TOKEN", "--profile", "--environment", "shop"], "give it with `upcycle set secret NAME`"),
        (["--list", "--environment", "shop"], "give it with `upcycle set secret NAME`"),
    ],
)
def test_what_is_wrong_is_refused_without_the_value(
    profile: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("ab"))
    assert run(["set", "secret", *arguments]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert VALUE not in printed
    assert not profile.exists()


@pytest.mark.parametrize("flag", [["--profile"], ["--environment", "shop"]])
def test_the_flags_of_secrets_are_refused_for_a_key(
    profile: Path, capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    assert run(["set", "OPENAI_API_KEY", *flag]) == 2
    assert f"{flag[0]} belongs to `upcycle set secret`" in capsys.readouterr().err


def test_a_projects_file_holds_none(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "upcycle.toml").write_text(f'[secrets]\nTOKEN = "{VALUE}"\n')
    assert run(["config", "show"]) == 2
    said = capsys.readouterr().err
    assert "a project's file is shared, and holds no secrets" in said
    assert VALUE not in said
    assert not profile.exists()


class Secrets(SecretServiceServicer):
    """As the platform has it."""

    def __init__(self) -> None:
        self.values = dict[str, str]()
        self.environments = dict[str, list[str]]()

    async def SetSecret(self, request: pb.SetSecretRequest, context: object) -> pb.SetSecretResponse:
        self.values[request.name] = request.value
        self.environments[request.name] = list(request.environments)
        return pb.SetSecretResponse(secret=self._shown(request.name))

    async def ListSecrets(self, request: pb.ListSecretsRequest, context: object) -> pb.ListSecretsResponse:
        return pb.ListSecretsResponse(secrets=map(self._shown, self.values))

    async def RemoveSecret(self, request: pb.RemoveSecretRequest, context: object) -> pb.RemoveSecretResponse:
        del self.values[request.name]
        return pb.RemoveSecretResponse()

    async def RotateSecrets(
        self, request: pb.RotateSecretsRequest, context: object
    ) -> pb.RotateSecretsResponse:
        return pb.RotateSecretsResponse(num_rotated=1, num_secrets=2, key_id="0123456789abcdef")

    def _shown(self, name: str) -> pb.Secret:
        return pb.Secret(name=name, set_by="operator", environments=self.environments[name])


@pytest.mark.usefixtures("profile")
async def test_a_secret_goes_to_the_platform_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "value").write_text(f"{VALUE}\n")
    secrets = Secrets()
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_SecretServiceServicer_to_server, secrets)
    await server.start()
    try:
        for peer in ("TASKSETS", "ENVIRONMENTS", "TRAJECTORIES", "TRAINING", "REGISTRY", "GATEWAY"):
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer}", server.address)
        given = SecretOptions(tmp_path / "value", list_=False, remove=None, in_profile=False, as_json=False)
        assert await set_secret(["OTHER"], given) == 0
        assert await set_secret(["TOKEN"], replace(given, environments=("shop", "desk"))) == 0
        assert secrets.values == {"OTHER": VALUE, "TOKEN": VALUE}
        assert secrets.environments == {"OTHER": [], "TOKEN": ["shop", "desk"]}
        for remove, list_ in ((None, True), ("TOKEN", False), ("OTHER", False)):
            asked = SecretOptions(None, list_=list_, remove=remove, in_profile=False, as_json=False)
            assert await set_secret([], asked) == 0
    finally:
        await server.stop()
    assert secrets.values == {}
    printed = capsys.readouterr()
    assert [line.split()[:-3] for line in printed.out.splitlines() if "operator" in line] == [
        ["OTHER", "each", "operator"],
        ["TOKEN", "shop,", "desk", "operator"],
    ]
    assert "MCP servers of shop, desk that start from now on have it" in printed.out
    assert VALUE not in printed.out + printed.err
