"""TALK about it: thin doors to what the rest of the house does."""
