"""The stages of a round: draft, build, verify; called directly or through the Triton server."""
