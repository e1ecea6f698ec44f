"""A function called on several processes from one that stays: a notebook's kernel, a prompt, a script."""
