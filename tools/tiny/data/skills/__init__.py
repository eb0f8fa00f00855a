"""The skills of ninfer-tiny: each module writes exchanges of one kind from a random generator.

A skill is a function ``(rng, split) -> Exchange``; ``documents.py`` mixes them.
"""
