"""What every room needs: errors, validation, seeding, devices, registries, files."""
