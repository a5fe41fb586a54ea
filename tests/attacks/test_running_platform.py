"""What a running platform shows to others of its machine."""

import stat

from tests.attacks.conftest import Attacked
from tests.attacks.strangers import as_stranger, read_as_stranger


def test_nothing_that_a_running_platform_writes_is_open_to_others(attacked: Attacked) -> None:
    found = (attacked.data_dir, *attacked.data_dir.rglob("*"))
    modes = {str(path): stat.S_IMODE(path.lstat().st_mode) for path in found if not path.is_symlink()}
    # SeaweedFS gives the sizes of its volumes a mode of its own; the folder above is closed.
    is_open = {path: oct(mode) for path, mode in modes.items() if mode & 0o077 and not path.endswith(".vif")}

    assert any(path.endswith(".sqlite") for path in modes)
    assert is_open == {}


@as_stranger
def test_a_stranger_reads_nothing_of_a_running_platform(attacked: Attacked) -> None:
    assert read_as_stranger(attacked.data_dir) == []
