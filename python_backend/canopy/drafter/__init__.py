"""The model `draft`: proposal sources, and the growth of one tree from all of them."""
