"""Functions that a script compiles, and calls on batches."""
