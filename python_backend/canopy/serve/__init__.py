"""Model folders, the Triton server's process and its supervision; starts no stage itself."""
