"""What the stages say to each other, as messages and through the Triton server."""
