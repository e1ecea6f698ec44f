"""How the batches of a loader reach the ranks."""
