"""What runs in the script's own process, beside the script: it writes down and changes nothing."""
