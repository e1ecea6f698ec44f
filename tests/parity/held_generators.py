"""A module of a script's, with a generator in it."""

import random

rng = random.Random(3)
