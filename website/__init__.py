"""What the documentation site is built with: hooks of the generator, and the script that draws the figure of its first page."""
