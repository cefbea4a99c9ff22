"""Say it: envelopes and routing templates as Catalyst expressions over the canonical change."""
