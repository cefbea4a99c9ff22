"""Looking into what is kept: the change log, and the versions of captured tables."""
