"""The learner: backbone, adaptation and head as one object, its file and its history."""
