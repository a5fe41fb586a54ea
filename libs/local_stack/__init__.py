"""The bus and the object store as plain programs of this machine, and the supervisor that runs a whole stack."""
