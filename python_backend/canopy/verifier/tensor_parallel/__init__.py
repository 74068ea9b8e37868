"""The target sharded over processes: tensor parallelism with torch.distributed.

    sharding     which heads, MLP columns and tokens are whose; cuts weights
    layers       the parts of a decoder that end in a collective
    rendezvous   how ranks find each other, and what they agree on before the first step
    commands     what rank 0 tells the others before every collective work
    decoder      rank 0's decoder and cache, inside the verifier
    team         the other ranks on this machine as processes, and the pulse of all
    worker       every other rank: follows rank 0's commands

Rank 0 schedules, accepts and decides alone; the others compute their share of the same rows and
move the same slots. Whatever goes wrong on one rank ends the work of all: rank 0 raises
StageFailed from then on, and a verifier that is loaded again starts with fresh workers.
"""
