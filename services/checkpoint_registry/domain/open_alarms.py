"""What the monitors of reward hacks say of runs. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """One that is neither cleared nor dismissed."""

    run_id: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} of run {self.run_id}: {self.text}"


@dataclass(frozen=True, slots=True)
class OpenAlarms:
    """unseen: why more alarms of these runs may come; empty where the monitors saw all of their episodes."""

    alarms: tuple[OpenAlarm, ...] = ()
    unseen: str = ""

    def __str__(self) -> str:
        return "; ".join(map(str, self.alarms))

    def of_run(self, run_id: str) -> str:
        """Those of one run, in words."""
        return "; ".join(str(one) for one in self.alarms if one.run_id == run_id)
