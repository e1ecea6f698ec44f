"""Gradients that nobody sees before they are those of all rows, and the backwards that make them so."""
