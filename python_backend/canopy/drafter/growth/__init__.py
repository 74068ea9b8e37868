"""How a proposal grows: level by level or best-first, and which children each mode makes."""
