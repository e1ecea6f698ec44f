"""What a script does to the world outside, once per job."""
