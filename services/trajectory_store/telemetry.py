"""The store's metrics."""

from typing import Final

from prometheus_client import Counter, Histogram

FACTS: Final = Counter("upcycle_ledger_facts_total", "Facts folded into the ledger", ["event"])
PROJECT_S: Final = Histogram("upcycle_ledger_batch_seconds", "Folding one batch of facts")
