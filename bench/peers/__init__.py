"""Other programs on the same machine, model and prompts."""
