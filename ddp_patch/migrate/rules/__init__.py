"""The rules of a migration to DDP or Accelerate: each takes a plan and writes its edits into the script."""
