"""The engine: requests, the step, and what every stage has been told."""
