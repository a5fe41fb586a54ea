"""How a checkpoint becomes head and how head is watched: the decisions alone, pure and deterministic.

`decide` judges a candidate, `AlphaWealth` says at which level, `Watch` looks after head, `power` says before
a run what its held-out set can show. The services that play episodes and move head call these; so do the
operating characteristics in `tests/libs/upcycle/gate`.
"""
