"""Incident: services of a shop are down for reasons that logs, configurations and processes show."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import Computer, Process, Service
from ..problems import Calls, Category, ComputerProblem, Deed, Goal, Plan, Want, noted, opened, shell
from .common import RULES, is_noted, page

_NAMES: Final = ("billing", "catalog", "search", "orders", "stock", "prices")
_KEYS: Final = ("port", "workers", "data", "timeout")
_CAUSES: Final = ("key", "port", "owner", "value")


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with one service. wants: how it is to be; calls: what mends it, up to its start."""

    service: str
    cause: str
    wants: tuple[Want, ...]
    looks: Calls
    calls: Calls


def _config_path(name: str) -> str:
    return f"/etc/shop/{name}.conf"


def _text_of(values: dict[str, str]) -> str:
    return page(*(f"{key} = {value}" for key, value in values.items()))


def _break(machine: Computer, name: str, cause: str, values: dict[str, str], rng: random.Random) -> _Fault:
    """Break one service of a machine on which all are well."""
    service, path = machine.services[name], _config_path(name)
    good = _text_of(values)
    runs = Want(f"service:{name}", {"state": "running", "loaded": good})
    looks: Calls = (shell(f"systemctl status {name}"), shell(f"tail -n 3 /var/log/shop/{name}.log"))
    start = shell(f"systemctl restart {name}")
    service.state = "failed"
    match cause:
        case "key":
            typo = rng.choice(("time-out", "timeuot", "timeout_s"))
            machine.files[path].text = good.replace("timeout", typo)
            _log(machine, name, f"cannot read configuration: unknown key '{typo}'")
            wants, mend = (
                (Want(f"file:{path}", {"text": good}), runs),
                shell(f"sed -i 's/{typo}/timeout/' {path}"),
            )
        case "port":
            pid = str(rng.randrange(900, 1900))
            machine.processes[pid] = Process("root", f"/opt/old/{name}-import --once", values["port"])
            _log(machine, name, f"bind: address in use, port {values['port']}")
            wants, mend = (Want(f"process:{pid}", None), runs), shell(f"kill {pid}")
        case "owner":
            machine.files[values["data"]].owner = "root"
            _log(machine, name, f"{values['data']}: permission denied")
            wants = (Want(f"file:{values['data']}", {"owner": service.user}), runs)
            mend = shell(f"chown {service.user} {values['data']}")
        case _:
            wrong = str(int(values["workers"]) * 100)
            machine.files[path].text = good.replace(f"workers = {values['workers']}", f"workers = {wrong}")
            service.state, service.loaded = "running", machine.files[path].text or ""
            _log(machine, name, f"out of memory: {wrong} workers asked for, killed and started again")
            wants = (Want(f"file:{path}", {"text": good}), runs)
            mend = shell(f"sed -i 's/workers = {wrong}/workers = {values['workers']}/' {path}")
    looks = (*looks, shell("ps") if cause == "port" else shell(f"cat {path}"))
    return _Fault(name, cause, wants, looks, (mend, start))


def _log(machine: Computer, name: str, line: str) -> None:
    file = machine.files[f"/var/log/shop/{name}.log"]
    file.text = page(file.text or "", f"2026-03-02 08:{len(line):02d}:00 ERROR {line}")


def _well(rng: random.Random) -> tuple[Computer, dict[str, dict[str, str]]]:
    """A machine on which every service runs, and their configurations."""
    machine, configs = Computer(), {}
    ports = rng.sample(range(7000, 7999), len(_NAMES))
    for name, port in zip(_NAMES, ports, strict=True):
        values = {
            "port": str(port),
            "workers": str(rng.randrange(2, 9)),
            "data": f"/srv/shop/{name}",
            "timeout": "30",
        }
        configs[name] = values
        good = _text_of(values)
        machine.put(_config_path(name), good, owner="root")
        machine.put(f"/srv/shop/{name}", None, owner=f"svc-{name}")
        machine.put(f"/srv/shop/{name}/data.db", "rows", owner=f"svc-{name}")
        machine.put(
            f"/var/log/shop/{name}.log",
            page("2026-03-02 07:00:00 INFO started", "2026-03-02 07:30:00 INFO 0 errors"),
        )
        machine.services[name] = Service(_config_path(name), list(_KEYS), f"svc-{name}", loaded=good)
    return machine, configs


def _runbook(title: str) -> str:
    return page(
        "Runbook of the shop. Services: systemctl; configurations: /etc/shop; logs: /var/log/shop.",
        "A configuration has the keys port, workers, data, timeout, and the numbers of [[shop/registry]].",
        "The folder `data` of a service belongs to its user, svc-NAME; nothing below it is touched.",
        "What holds a port of the registry and is no service is left from an import: end it. Others stay.",
        "A service whose log has an ERROR is broken even if it runs. Services that are well are not touched.",
        "What is stopped without an ERROR waits for another service: start it when that runs.",
        f"At the end write a note {title}: one line `service: cause` for each that was broken, in the order "
        "of the alphabet; causes: key (a key that is wrong), value (a number that is), port, owner.",
    )


def make(rng: random.Random) -> ComputerProblem:
    machine, configs = _well(rng)
    broken = rng.sample(_NAMES, 4)
    causes = [*rng.sample(_CAUSES, 4)]
    well = [name for name in _NAMES if name not in broken]
    faults = [
        _break(machine, name, cause, configs[name], rng) for name, cause in zip(broken, causes, strict=True)
    ]
    if machine.services[broken[0]].state == "failed":  # one that only waits for another
        machine.services[well[0]].needs = [broken[0]]
        machine.services[well[0]].state = "stopped"
    for pid, name in (("812", "/usr/bin/backup --nightly"), ("2044", "/opt/old/report --daily")):
        machine.processes[pid] = Process("root", name, str(rng.randrange(8000, 8999)))
    title = rng.choice(("Incident", "Outage of today", "Post mortem"))
    registry = [f"{name}: port {one['port']}, workers {one['workers']}" for name, one in configs.items()]
    machine.pages = {"shop/runbook": _runbook(title), "shop/registry": page("Registry", *registry)}
    report = "\n".join(sorted(f"{one.service}: {one.cause}" for one in faults))
    goals = [Goal(f"{one.service} is mended", one.wants) for one in faults]
    waiting = [name for name in well if machine.services[name].state == "stopped"]
    wants = tuple(Want(f"service:{name}", {"state": "running"}) for name in waiting)
    goals += [Goal("what waited for it runs", wants, (f"{broken[0]} is mended",))] if wants else []
    goals.append(Goal("note", (is_noted(title, report),), tuple(one.name for one in goals)))
    text = (
        "Customers say that the shop does not work. Bring every service back as page shop/runbook of the "
        f"intranet says, and write the note that it asks for. {RULES}"
    )
    return ComputerProblem(text, machine, tuple(goals), _plan(faults, waiting, noted(title, report)))


def _plan(faults: list[_Fault], waiting: list[str], report: Calls) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:shop/runbook", "link:shop/registry"))
    plan.look(shell("systemctl list-units"), shell("grep -r ERROR /var/log/shop"))
    for one in faults:
        plan.look(*one.looks)
        plan.act(*one.calls)
    for name in waiting:
        plan.act(shell(f"systemctl start {name}"))
    plan.act(*report)
    return tuple(plan.deeds)


INCIDENT = Category("incident", make)
