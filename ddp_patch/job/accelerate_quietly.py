"""Import Accelerate without the filter that it adds, which hides what torch says of a scheduler (accelerate 1.15)."""

import warnings

with warnings.catch_warnings():
    import accelerate.scheduler  # noqa: F401
