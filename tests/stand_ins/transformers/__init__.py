"""Two modules with the names that transformers has, and what its models do with them, for tests without it."""
