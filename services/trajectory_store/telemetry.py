"""The store's metrics."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

FACTS: Final = Counter("upcycle_ledger_facts_total", "Facts folded into the ledger", ["event"])
PROJECT_S: Final = Histogram("upcycle_ledger_batch_seconds", "Folding one batch of facts")
LATE_FACTS: Final = Counter(
    "upcycle_ledger_late_facts_total", "Facts about episodes whose rows retention removed"
)
REMOVED: Final = Counter("upcycle_store_removed_total", "What retention removed", ["what"])
REMOVED_BYTES: Final = Counter("upcycle_store_removed_bytes_total", "Bytes of removed bodies")
MONITORED: Final = Counter(
    "upcycle_store_monitored_total", "Ended episodes that the monitors of reward hacks saw"
)
NOT_MONITORED: Final = Counter(
    "upcycle_store_not_monitored_total",
    "Ended episodes that broke a monitor of reward hacks, which saw nothing",
)
REWARD_ALARM: Final = Gauge(
    "upcycle_store_reward_alarm", "1 while a monitor of reward hacks has an open alarm", ["model", "kind"]
)
