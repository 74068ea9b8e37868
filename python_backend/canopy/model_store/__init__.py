"""Model folders: fetched, converted, checked, and the files that ship with Canopy."""
