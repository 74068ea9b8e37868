"""Tables of n-grams and what follows them; imports no other kernel."""
