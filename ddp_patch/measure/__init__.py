"""Runs of a script in which the seconds of its steps are written down; ``profile`` and ``scale`` stand on it."""
