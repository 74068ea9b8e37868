"""The n-gram store and the survival model of lookup."""
