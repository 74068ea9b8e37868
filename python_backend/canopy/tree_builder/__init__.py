"""The model `tree_builder`: reads the load, prices nodes, selects the tree of every sequence."""
