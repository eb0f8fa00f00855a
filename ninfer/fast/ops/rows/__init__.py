"""Residual rows on their way between a round, the lanes' state images and a drafter."""
