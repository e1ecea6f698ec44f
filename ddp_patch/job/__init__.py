"""Who started us, how to start workers if nobody did, and the job they form."""
