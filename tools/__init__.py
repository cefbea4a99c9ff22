"""What works on the repository itself, and is no part of the package."""
