"""Published draft heads as sources of proposals; their networks are in canopy.models."""
