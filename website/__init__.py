"""Hooks of the site generator, and the figure of the first page."""
