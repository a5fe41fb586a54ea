"""A keeper beside each engine process, and the embedded engine itself (`policy_engine.embedded`)."""
