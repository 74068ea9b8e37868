"""Canopy: lossless tree speculative decoding served by a Triton server.

One package for each of the four Triton models, around the engine:

    frontend -> engine -> drafter, tree_builder, verifier

The three stages import none of each other. Below them, for all of them: protocol, models,
kv_cache, acceptance, costs, tree, text and model_store. `server` and `cli` start processes;
`profiling` runs the engine over stages in one process. Imports go down only.
"""
