"""What torch functions do to rows. Importing ``table`` fills ``batch.tensor.RULES``."""
