"""repair-30: small repositories with failing tests, to be repaired; hidden tests decide."""
