"""The ledger and what may be asked of it. Pure."""
