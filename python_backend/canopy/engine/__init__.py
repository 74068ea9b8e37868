"""The engine: requests, the turn, and what every stage has been told."""
