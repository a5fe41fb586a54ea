"""What `upcycle restore` prints."""

from pathlib import Path

from tests.e2e.test_backup import command
from tests.libs.platform_backup.conftest import SiteMaker

from platform_backup.backup import back_up
from upcycle.cli.exits import Exit


async def test_a_restore_says_what_it_restored_and_the_command_that_comes_next(
    new_site: SiteMaker, tmp_path: Path
) -> None:
    old, folder, new = await new_site("old"), tmp_path / "backup", tmp_path / "new"
    await old.fill()
    made = await back_up(old.places, folder)
    status, said = await command("restore", str(folder), "--data-dir", str(new))
    assert status == Exit.OK, said
    summary, following = said.splitlines()[-2:]
    assert summary.startswith(f"{folder}: ")
    assert f", {made.num_objects} objects of 0.3 MB, made {made.made_at}" in summary
    assert following == f"restored into {new}; next: upcycle up --model MODEL --data-dir {new}"
