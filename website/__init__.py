"""What the documentation site is built with: hooks of its generator, and the figure of its first page."""
