"""Gated DeltaNet: causal convolution, recurrent steps with records, gated norm, and the fold after
verifying.
"""
