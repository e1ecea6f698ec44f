"""The version of this package, and of what it works with."""

__version__ = "0.1.0"
OLDEST_TORCH = (2, 13)  # as pyproject.toml says
