"""What a setting is and where from: environment, project, profile, default, in this order."""

from collections.abc import Callable
from pathlib import Path

import pytest

from upcycle.errors import UpcycleError
from upcycle.platform import PEERS, find_addresses
from upcycle.user_settings.catalogue import DEFAULT_PORTS
from upcycle.user_settings.files import SettingsInvalid, SettingsRefused
from upcycle.user_settings.layers import Layer, UserSettings, run_variable


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., UserSettings]:
    """Settings of a home folder and a project beside it, whose files hold what is given."""

    def settings(profile: str = "", project: str = "", mode: int = 0o600, **env: str) -> UserSettings:
        home, work = tmp_path / "home", tmp_path / "work" / "deep"
        work.mkdir(parents=True, exist_ok=True)
        path = home / ".config" / "upcycle" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(profile)
        path.chmod(mode)
        (work.parent / "upcycle.toml").write_text(project)
        return UserSettings.read({"HOME": str(home), **env}, work)

    return settings


def test_the_nearer_layer_wins_and_says_its_place(read: Callable[..., UserSettings], tmp_path: Path) -> None:
    profile = '[agents]\nclaude_model = "mine"\nopenai_model = "mine"\n'
    project = '\n[agents]\nclaude_model = "ours"\n'
    found = read(profile, project, UPCYCLE_GEMINI_MODEL="now")
    said = {
        name: (one.value, one.layer, one.place)
        for name in ("claude", "openai", "gemini")
        for one in [found.find(f"agents.{name}_model")]
    }
    assert said == {
        "claude": ("ours", Layer.PROJECT, f"{tmp_path}/work/upcycle.toml:3"),
        "openai": ("mine", Layer.PROFILE, f"{tmp_path}/home/.config/upcycle/config.toml:3"),
        "gemini": ("now", Layer.ENVIRONMENT, "UPCYCLE_GEMINI_MODEL"),
    }
    assert read().find("agents.openai_model").layer is Layer.DEFAULT
    assert read(project=project, UPCYCLE_CLAUDE_MODEL="now").find("agents.claude_model").value == "now"


def test_variables_are_those_of_the_process_and_what_files_add(read: Callable[..., UserSettings]) -> None:
    found = read('[keys]\nOPENAI_API_KEY = "of the profile"\nGEMINI_API_KEY = "g"\n', OPENAI_API_KEY="")
    variables = found.variables()
    assert variables["OPENAI_API_KEY"] == "", "an empty variable takes the key away"
    assert variables["GEMINI_API_KEY"] == "g"
    assert "UPCYCLE_CLAUDE_MODEL" not in variables


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "project",
            "[agents]\nclaude_modl = 'x'\n",
            "upcycle.toml:2: unknown key 'claude_modl' in [agents]; ",
        ),
        ("project", "[agents]\nclaude_modl = 'x'\n", "did you mean 'claude_model'?"),
        ("profile", "\n[agent]\n", "config.toml:2: unknown table 'agent'; did you mean 'agents'?"),
        ("project", "[eval]\ngroup_sise = 3\n", "upcycle.toml:2: unknown key 'group_sise' in [eval]; "),
        ("project", "[train.training]\nstep = 3\n", "unknown key 'training.step' in [train]; did you mean"),
        ("project", "[eval]\npurpose = 'train'\n", "unknown key 'purpose' in [eval]; [eval] says it"),
        ("project", "[eval]\nsampling.a.b = 1\n", "unknown key 'sampling.a' in [eval]"),
        ("project", "[eval]\nseed = 3\n", "unknown key 'seed' in [eval]; did you mean 'sampling.seed'?"),
        ("project", "[train]\nsteps = 3\n", "did you mean 'training.steps'?"),
        ("project", "eval = 3\n", "upcycle.toml:1: eval is a table; write [eval]"),
        ("project", "[up]\nport_offset = 'x'\n", "upcycle.toml:2: up.port_offset = 'x' is no whole number"),
        ("project", "[up]\nport_offset = true\n", "is no whole number"),
        ("project", "[up]\nengine = 'vllm'\n", "up.engine = 'vllm'; did you mean 'vllm-cpu'?"),
        ("project", "[platform]\nhost = 3\n", "upcycle.toml:2: platform.host is no text"),
        (
            "project",
            "[keys]\nOPENAI_API_KEY = 'k'\n",
            "is a key, and a project's file is shared; upcycle set",
        ),
        ("project", "[agents]\nopenai_url = 'http://a'\n", "says where a key of yours is sent"),
        ("project", "[agents]\n[agents]\n", "upcycle.toml:2 is not TOML"),
        ("profile", "[keys]\nOPENAI_KEY = 'k'\n", "did you mean 'OPENAI_API_KEY'?"),
    ],
)
def test_what_a_file_may_not_say_is_refused_with_its_line(
    read: Callable[..., UserSettings], file: str, text: str, said: str
) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        read(**{file: text})
    assert said in str(refused.value)
    assert "'k'" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_profile_that_others_can_open_is_not_read(read: Callable[..., UserSettings], mode: int) -> None:
    with pytest.raises(SettingsRefused, match=rf"\(mode {mode:04o}\); chmod 600 .*config.toml"):
        read('[keys]\nOPENAI_API_KEY = "k"\n', mode=mode)


def test_a_variable_names_the_files_or_none(read: Callable[..., UserSettings], tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[agents]\nclaude_model = "other"\n')
    assert read(UPCYCLE_PROJECT=str(other)).find("agents.claude_model").value == "other"
    refused = read('[agents]\nclaude_model = "mine"\n', UPCYCLE_PROFILE="")
    assert refused.find("agents.claude_model").layer is Layer.DEFAULT
    with pytest.raises(SettingsInvalid, match="there is no such file"):
        read(UPCYCLE_PROJECT=str(tmp_path / "gone.toml"))


def test_a_project_file_of_another_user_is_left(
    read: Callable[..., UserSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upcycle.user_settings.files.trusted_owners", lambda: ())
    with pytest.raises(SettingsRefused, match=r"belongs to another user.*UPCYCLE_PROJECT="):
        read(project="[agents]\n")
    assert read(UPCYCLE_PROJECT=str(tmp_path / "work" / "upcycle.toml")).project is not None


def test_fields_of_a_run_come_from_files_and_typed_variables(
    read: Callable[..., UserSettings], tmp_path: Path
) -> None:
    profile = "[eval]\ngroup_size = 2\nlabel = 'mine'\n"
    project = (
        "[eval]\ngroup_size = 4\ntaskset = 'tasks.py'\n[train.training]\nloss_config = {clip_high = 0.3}\n"
    )
    settings = read(profile, project, UPCYCLE_EVAL_SAMPLING_TEMPERATURE="0.5", UPCYCLE_EVAL_LABEL="7")
    found = {path: (one.value, one.where) for path, one in settings.run_fields("eval").items()}
    assert found == {
        "group_size": (4, f"group_size ({tmp_path}/work/upcycle.toml:2)"),
        "taskset": (f"{tmp_path}/work/tasks.py", f"taskset ({tmp_path}/work/upcycle.toml:3)"),
        "label": ("7", "label (UPCYCLE_EVAL_LABEL)"),
        "sampling.temperature": (0.5, "sampling.temperature (UPCYCLE_EVAL_SAMPLING_TEMPERATURE)"),
    }
    assert settings.run_fields("train")["training.loss_config.clip_high"].value == 0.3


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("UPCYCLE_EVAL_GROUPSIZE", "UPCYCLE_EVAL_GROUP_SIZE"),
        ("UPCYCLE_UP_MODELS", "UPCYCLE_UP_MODEL"),
        ("UPCYCLE_TRAIN_STEPS", "UPCYCLE_TRAIN_TRAINING_STEPS"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(
    read: Callable[..., UserSettings], name: str, nearest: str
) -> None:
    with pytest.raises(SettingsInvalid, match=f"the environment has {name}; did you mean '{nearest}'"):
        read(**{name: "1"}).check_names()


def test_two_fields_of_a_run_never_share_a_variable() -> None:
    from upcycle.run_config.reading import RunFile
    from upcycle.run_config.refusing import leaves

    paths = list(leaves(RunFile))
    assert len({run_variable("train", path) for path in paths}) == len(paths)


def test_addresses_of_a_host_have_the_default_ports(tmp_path: Path) -> None:
    (tmp_path / "upcycle.toml").write_text('[platform]\nhost = "team"\ngateway = "edge:443"\n')
    found = find_addresses(tmp_path, {"UPCYCLE_PEERS_REGISTRY": "here:1"})
    expected = {peer: f"team:{port}" for peer, port in DEFAULT_PORTS.items()}
    assert found.peers == {**expected, "gateway": "edge:443", "registry": "here:1"}
    assert str(tmp_path / "upcycle.toml") in found.source
    assert set(DEFAULT_PORTS) == set(PEERS)


def test_the_host_of_a_nearer_layer_wins_over_an_address_of_a_farther_one(
    read: Callable[..., UserSettings],
) -> None:
    settings = read(project='[platform]\ngateway = "old:1"\n', UPCYCLE_PLATFORM_HOST="new")
    assert settings.peers(*Layer)["gateway"].value == "new:7180"


def test_the_default_ports_are_those_of_the_services() -> None:
    from service_kit.groups import PeerSettings

    services = PeerSettings().model_dump(exclude={"grading"})  # commands grade through the gateway
    assert {f"127.0.0.1:{port}" for port in DEFAULT_PORTS.values()} == set(services.values())


def test_half_of_the_addresses_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "upcycle.toml").write_text('[platform]\ngateway = "edge:443"\n')
    with pytest.raises(UpcycleError, match="UPCYCLE_PEERS_TASKSETS"):
        find_addresses(tmp_path, {})
