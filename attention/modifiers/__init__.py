"""Modifiers: what each changes in a mixer, one file each."""
