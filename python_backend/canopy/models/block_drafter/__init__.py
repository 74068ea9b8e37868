"""Canopy's own block drafter: network, checkpoint and runners."""
