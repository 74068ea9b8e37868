"""A block drafter as proposal source, alone or in one tree with lookup."""
