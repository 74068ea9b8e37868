"""Tool calls and reasoning within the text of an answer, as it comes."""
