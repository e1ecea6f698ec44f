"""One call of a module: what it is given and gives, as batches and as this rank's rows."""
