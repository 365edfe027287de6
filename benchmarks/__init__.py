"""Speed and memory, measured as ratios against a baseline in the same run."""
