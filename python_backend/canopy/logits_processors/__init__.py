"""Options that change the logits of a token by the tokens before it, at every node of a tree."""
