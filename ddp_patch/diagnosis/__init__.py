"""What the session did, and whether the ranks are still in step."""
