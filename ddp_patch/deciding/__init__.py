"""Whether a module's rows may be computed apart: seen once for each form of a call, and tried if that is not enough."""
