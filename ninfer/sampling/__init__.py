"""The draw as the contract defines it, on the host, from float32 logits to one token id.

``parameters.py`` holds the values, ``resolve.py`` merges preset, process and request, ``philox.py`` is the
position-keyed randomness, ``distribution.py`` the processed distribution and ``draw.py`` the selection.
Rules, ranges and order stand in ``spec/sampling.yaml``. Numpy only: imports no engine, no torch.
"""
