"""The entry model `canopy`: requests in, text out, and the restart of failed stages."""
