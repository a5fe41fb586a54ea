"""Names of everything that travels or is stored, made and parsed here only. Standard library alone.

entities: ids of episodes, trajectories, checkpoints. events: ids by which JetStream drops repeats. subjects:
addresses on the bus. durables: names of consumers. objects: keys in the object store. tenants: who owns it.
"""
