"""Foundations: errors, validation, seeding, registries, archives and files."""
