"""The simulated computer does what its shell and its apps say, and touches nothing else."""

import copy
import json
from pathlib import Path

import pytest

from upcycle.benchmarks.autonomy_10.apps import desktop
from upcycle.benchmarks.autonomy_10.errors import ActionRefused
from upcycle.benchmarks.autonomy_10.machine.facts import facts_of
from upcycle.benchmarks.autonomy_10.machine.state import (
    Computer,
    Event,
    Mail,
    Package,
    Process,
    Service,
    Setting,
    StoredTable,
    User,
)
from upcycle.benchmarks.autonomy_10.shell.running import COMMANDS, run

CONFIG = "port = 80\ndata = /srv/web"


@pytest.fixture
def machine() -> Computer:
    """A bit of everything."""
    made = Computer(mail_folders=["Inbox", "Archive"], groups=["staff", "ops"])
    made.put("/home/ana/a.txt", "one\ntwo\nthree\n")
    made.put("/home/ana/docs/b.txt", "two, 2\nfour, 4", mode="600", day="2025-01-01")
    made.put("/etc/web.conf", CONFIG, owner="root")
    made.put("/srv/web", None, owner="svc")
    made.services = {
        "db": Service("/etc/web.conf", ["port", "data"], "svc", state="stopped"),
        "web": Service("/etc/web.conf", ["port", "data"], "svc", needs=["db"], state="failed"),
    }
    made.processes = {"7": Process("root", "old", "80")}
    made.packages = {
        "lib": Package("/srv/lib", "1.0.0", "1.0.0"),
        "app": Package("/srv/app", "2.0.0", "2.0.0"),
    }
    for name, version, needs in (("lib", "1.1.0", ""), ("app", "2.0.1", "lib >= 1.1.0")):
        made.put(f"/srv/{name}/VERSION", version)
        made.put(f"/srv/{name}/NEEDS", needs)
    made.users = {"ana": User("Ana", ["staff"]), "bo": User("Bo", ["staff", "ops"])}
    made.cron = {"bo": ["0 1 * * * /bin/x"]}
    made.receive(Mail("bo@ours.com", "ana", "Hello", "A text."))
    made.events = {"e001": Event("ana", "Call", "2026-03-03", "10:00", "11:00")}
    made.tables = {"People": StoredTable(["name", "town"], [["bo", "Como"]])}
    made.notes = {"List": "bread"}
    made.settings = {
        "sound.level": Setting("5"),
        "sound.mode": Setting("on", ["on", "off"]),
        "net.dns": Setting("x", is_managed=True),
    }
    made.pages = {"rules": "Read [[more]].", "more": "No more."}
    return made


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("pwd; whoami | wc -l", "/home/ana\n1"),
        ("cat a.txt | grep -v two | sort -r", "three\none"),
        ("grep -rn two .", "/home/ana/a.txt:2:two\n/home/ana/docs/b.txt:1:two, 2"),
        ("grep -c t a.txt docs/b.txt", "a.txt:2\ndocs/b.txt:1"),
        ("cut -d , -f 2 docs/b.txt | head -n 1", " 2"),
        ("cut -d ',' -f 1 docs/*.txt | tail -1", "four"),
        ("sed -n 2,3p a.txt && sed 's/o/0/g' a.txt | head -1", "two\nthree\n0ne"),
        ("sed '/two/d' a.txt | cat -n", "     1  one\n     2  three"),
        ("printf '%s-%s\\n' a b; echo -e 'x\\ty'", "a-b\nx\ty"),
        ("ls docs; ls -l docs", "b.txt\n600 ana          14 2025-01-01 b.txt"),
        ("find ~ -name '*.txt' -perm 600", "/home/ana/docs/b.txt"),
        ("cd docs && pwd && cd .. && ls", "/home/ana/docs\na.txt\ndocs/"),
        ("cat nope || echo no", "cat: nope: no such file or folder\nno"),
        ("cat nope && echo no", "cat: nope: no such file or folder"),
        ("echo 'a | b; c > d' # and a remark", "a | b; c > d"),
        ('echo "it\'s $5"', "it's $5"),
        ("echo b >> a.txt; tail -n 2 a.txt; wc -l < a.txt", "three\nb\n4"),
        ("sort -k 2 -t , -n -r docs/b.txt | uniq -c", "      1 four, 4\n      1 two, 2"),
        ("diff a.txt a.txt; date", "2026-03-02 09:00"),
        ("cat nope 2>/dev/null | wc -l", "cat: nope: no such file or folder\n0"),
    ],
)
def test_the_shell_prints_what_a_shell_prints(machine: Computer, command: str, printed: str) -> None:
    assert run(machine, command).text == printed


@pytest.mark.parametrize(
    ("command", "path", "text"),
    [
        ("mv a.txt docs", "/home/ana/docs/a.txt", "one\ntwo\nthree\n"),
        ("mkdir -p x/y && cp a.txt x/y/z.txt", "/home/ana/x/y/z.txt", "one\ntwo\nthree\n"),
        ("cp -r docs more", "/home/ana/more/b.txt", "two, 2\nfour, 4"),
        ("mv docs new", "/home/ana/new/b.txt", "two, 2\nfour, 4"),
        ("sed -i s/two/2/ a.txt", "/home/ana/a.txt", "one\n2\nthree\n"),
        ("touch new.txt", "/home/ana/new.txt", ""),
        ("rm -r docs a.txt", "/home/ana/a.txt", None),
        ("rm a.txt && rmdir docs || rm -r docs", "/home/ana/docs", None),
    ],
)
def test_the_shell_changes_files(machine: Computer, command: str, path: str, text: str | None) -> None:
    run(machine, command)
    assert (machine.files[path].text if path in machine.files else None) == text


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("rm docs", "docs: is a folder; -r removes it"),
        ("mv docs docs/in", "cannot be put into itself"),
        ("cp a.txt b.txt nowhere", "nowhere: is no folder"),
        ("chmod 999 a.txt", "'999' is no mode"),
        ("chown eve a.txt", "'eve': no such user"),
        ("grep '[' a.txt", "pattern '['"),
        ("sed 'y/a/b/' a.txt", "write s/old/new/"),
        ("cat a.txt >", "a file name is missing after >"),
        ("| cat", "a command is missing beside |"),
        ("ls &", "nothing runs in the background"),
        ("rm -x a.txt", "unknown option -x; known are r, R, f"),
        ("systemctl start web", "web did not start: it needs db, which is stopped"),
        ("systemctl start db", "db did not start: port 80 is in use by process 7"),
        ("systemctl status nope", "there is no service 'nope'"),
        ("kill 99", "(99): no such process"),
        ("pkg publish lib", "lib 1.1.0 is not built"),
        ("pkg build app", "app needs lib >= 1.1.0, published is 1.0.0"),
        ("usermod -aG nope ana", "'nope': no such group"),
        ("useradd Ana.B", "a name has 1 to 31 of"),
        ("crontab -u bo -l | crontab -u eve -", "'eve': no such user"),
        ("echo nope | crontab -", "five fields of time"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(machine: Computer, command: str, said: str) -> None:
    before = facts_of(copy.deepcopy(machine))
    ran = run(machine, command)
    assert said in ran.text
    assert ran.status != 0
    after = facts_of(machine)
    for name in ("service:db", "service:web"):  # one that did not start is failed, whatever it was
        before[name].pop("state"), after[name].pop("state")
    assert after == before


def test_a_service_starts_once_nothing_keeps_it_from_starting(machine: Computer) -> None:
    assert run(
        machine, "kill 7; sed -i 's/port = 80/prt = 80/' /etc/web.conf; systemctl start db"
    ).text.endswith("db did not start: /etc/web.conf: unknown key 'prt'")
    assert run(machine, "sed -i 's/prt/port/' /etc/web.conf; systemctl start db").status == 0
    assert (machine.services["db"].state, machine.services["db"].loaded) == ("running", CONFIG)
    assert run(machine, "ps | grep sbin").text == "4000 svc 80 /usr/sbin/db"
    assert "port 80 is in use by process 4000" in run(machine, "systemctl start web").text
    assert run(machine, "kill 4000; systemctl").text == "db failed enabled\nweb failed enabled"
    run(machine, "chown root /srv/web")
    assert "/srv/web: permission denied for user svc" in run(machine, "systemctl start db").text


def test_packages_are_published_in_the_order_of_their_needs(machine: Computer) -> None:
    assert run(machine, "pkg build lib && pkg publish lib && pkg build app && pkg hold app").status == 0
    assert "app is held" in run(machine, "pkg publish app").text
    assert run(machine, "pkg unhold app && pkg publish app").text.endswith("published app 2.0.1")
    assert "is published; 1.1.0 is not newer" in run(machine, "pkg publish lib").text
    assert run(machine, "echo x > /srv/lib/VERSION; pkg build lib").text == (
        "pkg: 'x' is no version; write three numbers, such as 1.4.0"
    )


def test_accounts_groups_and_jobs(machine: Computer) -> None:
    run(machine, "useradd -c 'Cy Doe' -G ops cy; usermod -aG ops ana; usermod -rG staff bo; passwd -l bo")
    assert (
        run(machine, "getent group; id bo").text
        == "staff: ana\nops: ana, bo, cy\nbo (Bo) locked, groups: ops"
    )
    run(
        machine,
        "crontab -u bo -l > /tmp/c; echo '5 5 * * 1 /bin/y' >> /tmp/c; crontab -u bo /tmp/c; userdel cy",
    )
    assert machine.cron["bo"] == ["0 1 * * * /bin/x", "5 5 * * 1 /bin/y"]
    assert "cy" not in machine.users


@pytest.mark.parametrize(
    ("mode", "change", "after"),
    [
        ("644", "g+w,o-r", "660"),
        ("777", "o=", "770"),
        ("600", "a+r", "644"),
        ("644", "+x", "755"),
        ("1", "640", "640"),
    ],
)
def test_modes(machine: Computer, mode: str, change: str, after: str) -> None:
    machine.files["/home/ana/a.txt"].mode = mode
    run(machine, f"chmod {change} a.txt")
    assert machine.files["/home/ana/a.txt"].mode == after


def clicks(machine: Computer, app: str, *steps: str) -> str:
    """What the screen shows after an app was opened and elements clicked, or written to: `field=text`."""
    said = desktop.open_app(machine, app)
    for step in steps:
        field, equals, text = step.partition("=")
        said = desktop.type_text(machine, field, text) if equals else desktop.click(machine, step)
    return said


def test_mail_is_moved_flagged_and_answered(machine: Computer) -> None:
    assert "From: bo@ours.com" in clicks(machine, "mail", "folder:Inbox", "m01")
    clicks(machine, "mail", "folder:Inbox", "m01", "flag", "move:Archive")
    clicks(machine, "mail", "folder:Archive", "m01", "reply", "body=Yes.", "send")
    assert (machine.mails["m01"].folder, machine.mails["m01"].flagged) == ("Archive", True)
    assert facts_of(machine)["sent:bo@ours.com/re: hello"] == {"body": "Yes."}
    with pytest.raises(ActionRefused, match="the field body is empty"):
        clicks(machine, "mail", "new", "to=x", "subject=y", "send")


def test_events_are_made_changed_and_deleted(machine: Computer) -> None:
    made = ("title=Talk", "day=2026-03-04", "start=09:00", "end=09:30", "guests=bo,  cy", "save")
    clicks(machine, "calendar", "calendar:ana", "new", *made)
    assert facts_of(machine)["event:ana/talk"] == {"when": "2026-03-04 09:00-09:30", "guests": "bo, cy"}
    clicks(machine, "calendar", "calendar:ana", "e002", "end=10:00", "save")
    clicks(machine, "calendar", "calendar:ana", "e001", "delete")
    assert [event.end for event in machine.events.values()] == ["10:00"]
    for wrong, said in (
        ("day=4 March", "day is '4 March'"),
        ("start=9", "start is '9'"),
        ("end=08:00", "it ends at 08:00"),
    ):
        with pytest.raises(ActionRefused, match=said):
            clicks(machine, "calendar", "calendar:ana", "e002", wrong, "save")


def test_tables_notes_settings_and_pages(machine: Computer) -> None:
    clicks(machine, "tables", "table:People", "row:1", "cell:town=Gent")
    clicks(machine, "tables", "table:People", "new", "cell:name=cy", "cell:town=Faro", "save")
    assert machine.tables["People"].rows == [["bo", "Gent"], ["cy", "Faro"]]
    with pytest.raises(ActionRefused, match="the field cell:name is empty"):
        clicks(machine, "tables", "table:People", "new", "save")
    clicks(machine, "notes", "new", "title=Two", "text=a", "save")
    clicks(machine, "notes", "note:List", "text=milk", "save")
    assert machine.notes == {"List": "milk", "Two": "a"}
    clicks(machine, "settings", "section:sound", "sound.level=7", "sound.mode=off")
    assert [one.value for one in machine.settings.values()] == ["7", "off", "x"]
    for section, wrong, said in (
        ("sound", "sound.mode=loud", "choose on, off"),
        ("net", "net.dns=y", "managed by"),
    ):
        with pytest.raises(ActionRefused, match=said):
            clicks(machine, "settings", f"section:{section}", wrong)
    assert "No more." in clicks(machine, "browser", "link:rules", "link:more")
    assert "Read more." in clicks(machine, "browser", "address=rules")
    with pytest.raises(ActionRefused, match="no page 'x'"):
        clicks(machine, "browser", "address=x")


def test_looking_and_drafting_are_no_change(machine: Computer) -> None:
    before = facts_of(machine)
    clicks(machine, "mail", "folder:Inbox", "m01", "reply", "body=Never sent.")
    clicks(machine, "calendar", "calendar:ana", "e001", "title=Other", "back")
    clicks(machine, "notes", "note:List", "text=Other", "back")
    run(machine, "cd docs; cat b.txt; ps; pkg list; getent passwd")
    assert facts_of(machine) == before


def test_a_field_is_not_clicked_and_a_button_not_written_to(machine: Computer) -> None:
    with pytest.raises(ActionRefused, match=r"\[body\] is a field; type_text writes to it"):
        clicks(machine, "mail", "new", "body")
    with pytest.raises(ActionRefused, match=r"\[send\] is no field; click presses it"):
        clicks(machine, "mail", "new", "send=x")


def test_every_command_takes_any_arguments_and_the_real_machine_stays(
    machine: Computer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command raises anything but what its text says, and none leaves a trace below the real folder."""
    monkeypatch.chdir(tmp_path)
    real = tmp_path / "real.txt"
    real.write_text("real")
    arguments = (
        "",
        "''",
        "-",
        "--",
        "-z",
        "-n",
        "-n x",
        "* *",
        "/ /",
        f"{real} x",
        "a.txt " * 40,
        "'\x00'",
        "-u",
        "~ ..",
        "é\t√",
        "-rf real.txt",
    )
    for name in COMMANDS:
        for one in arguments:
            run(copy.deepcopy(machine), f"{name} {one}")
            run(copy.deepcopy(machine), f"cat a.txt | {name} {one} > out.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["real.txt"]
    assert real.read_text() == "real"


def test_the_disk_has_an_end_and_output_is_cut(machine: Computer) -> None:
    run(machine, "; ".join(f"mkdir d{number}" for number in range(1_500)))
    assert (
        "the disk holds at most 2,000 files" in run(machine, "cp -r . /tmp/again; cp -r /home /tmp/more").text
    )
    machine.put("/tmp/long", "x" * 50_000)
    assert "38,000 characters more" in run(machine, "cat /tmp/long").text
    many = " ".join(["/tmp/long"] * 9)
    assert "a file has at most 100,000" in run(machine, f"cat {many} > /tmp/longer").text


def test_the_state_is_json(machine: Computer) -> None:
    assert json.loads(json.dumps(machine.as_json()))["notes"] == {"List": "bread"}
