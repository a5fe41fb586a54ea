"""Another login lays out the state file of a platform where somebody's commands look for one."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks.strangers import STRANGER, as_stranger

from upcycle.platform import PEERS, PlatformNotFound, find_addresses, running_stack
from upcycle.user_settings.files import SettingsRefused

EVIL = "198.51.100.7:1"
PLANTED = json.dumps(
    {"pid": 1, "peers": dict.fromkeys(PEERS, EVIL), "gateway_key_file": "/root/.ssh/id_ed25519"}
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which everybody may write, such as /tmp."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def planted(shared: Path, *, at: str = ".upcycle/up/state.json") -> Path:
    """As the stranger's shell leaves it."""
    path = shared / at
    command = 'mkdir -p "$(dirname "$0")" && printf %s "$1" > "$0"'
    subprocess.run(
        ["/bin/sh", "-c", command, str(path), PLANTED],
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        check=True,
    )
    return path


def own(folder: Path, *, mode: int = 0o600) -> Path:
    path = folder / ".upcycle" / "up" / "state.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pid": os.getpid(), "peers": dict.fromkeys(PEERS, "127.0.0.1:1")}))
    path.chmod(mode)
    return path


@as_stranger
def test_a_planted_file_is_refused_by_name_with_the_way_out(shared: Path) -> None:
    path = planted(shared)
    (shared / "work").mkdir()

    refused = rf"{path} belongs to another user \(uid {STRANGER}\).*UPCYCLE_UP_DATA_DIR"
    with pytest.raises(SettingsRefused, match=refused):
        find_addresses(shared / "work", environ={})


@as_stranger
def test_the_ways_out_of_a_planted_file_lead_out(shared: Path) -> None:
    planted(shared)
    mine = own(shared / "mine").parent
    peers = {f"UPCYCLE_PEERS_{peer.upper()}": "h:2" for peer in PEERS}

    assert (
        find_addresses(shared, environ={"UPCYCLE_UP_DATA_DIR": str(mine)}).peers["registry"] == "127.0.0.1:1"
    )
    assert find_addresses(shared, environ=peers).peers["registry"] == "h:2"


@as_stranger
def test_a_planted_link_to_a_file_of_ours_is_refused(shared: Path) -> None:
    download = shared / "download.json"
    download.write_text(PLANTED)
    path = planted(shared)
    path.unlink()
    path.symlink_to(download)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)

    with pytest.raises(SettingsRefused, match="belongs to another user"):
        running_stack(shared)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o622])
def test_a_file_that_others_can_change_is_refused(shared: Path, mode: int) -> None:
    path = own(shared, mode=mode)

    with pytest.raises(SettingsRefused, match=rf"{path} can be changed .*mode {mode:04o}.*chmod go-w {path}"):
        find_addresses(shared, environ={})
    path.chmod(0o644)
    assert find_addresses(shared, environ={}).peers["registry"] == "127.0.0.1:1"


@as_stranger
def test_a_closed_data_folder_of_another_user_stops_no_command_below_it(shared: Path) -> None:
    planted(shared).parent.chmod(0o700)
    os.seteuid(STRANGER - 1)
    try:
        with pytest.raises(PlatformNotFound):
            find_addresses(shared, environ={})
    finally:
        os.seteuid(0)
