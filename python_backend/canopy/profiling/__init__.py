"""Measures what trees cost and bring on this machine: the profile that the tree builder reads."""
