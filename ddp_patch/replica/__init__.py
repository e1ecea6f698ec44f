"""The model under DistributedDataParallel: finding it, entering it with rows, leaving it with batches."""
