"""One rule for each file, named after its code."""
