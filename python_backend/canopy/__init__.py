"""Canopy: lossless tree speculative decoding served by a Triton server.

Imports go one way, from the top floor down:

    engine -> stages -> parallel -> models -> cache, acceptance, policy -> tree, text, config
    triton_io -> messages -> tree

`serve` and `cli` stand beside the engine: they start processes and never import a stage, but for
`profiling`, which runs the engine over direct stages.
"""
