"""A keeper beside each engine process, and the embedded engine itself (`embedded_engine`)."""
