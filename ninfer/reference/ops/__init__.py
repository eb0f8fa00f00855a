"""One file per operation of the model, each reading like its formula; shapes stand in the docstrings.

Plain PyTorch without batch dimension: rows are the tokens of one sequence. The dtype of the inputs decides
the arithmetic: float32 as served, float64 to judge rounding. The fast engine has a twin of each signature.
Knows nothing of layers, weights files or requests.
"""
