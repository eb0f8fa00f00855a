"""The Finish half of a round: penalties, mask, top twenty, draw."""
