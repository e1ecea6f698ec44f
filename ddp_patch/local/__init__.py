"""The local view: what a careful engineer writes by hand with torch's DistributedDataParallel, from the same line."""
