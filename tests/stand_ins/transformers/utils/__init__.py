"""What its models share."""
