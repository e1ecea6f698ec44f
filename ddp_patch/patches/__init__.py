"""One file per patched torch name. ``everything`` lists them in the order they are applied."""
