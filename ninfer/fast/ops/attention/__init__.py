"""Gated attention over paged keys and values: append, attend by page, merge splits under the gate."""
