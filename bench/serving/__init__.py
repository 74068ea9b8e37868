"""The real server under load."""
