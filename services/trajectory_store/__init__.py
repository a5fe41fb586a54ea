"""trajectory_store: index of everything that was sampled, and the ledger of where each episode ended."""
