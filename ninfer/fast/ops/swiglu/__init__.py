"""SiLU(gate) ⊙ up, optionally written a second time in even-lanes-first order."""
