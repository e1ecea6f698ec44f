"""The global view: tensors of the whole batch's shape of which every rank holds its rows."""
