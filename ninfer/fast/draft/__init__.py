"""Drafters: what they propose for verification, how much of it, and what came of it.

``ngram/`` copies from the request's own text, ``lookup.py`` what followed the last tokens before, ``mtp.py``
the model's own prediction head, ``widths.py`` how many drafts pay, ``speculation.py`` puts them together for
a round. A drafter only ever proposes; what is committed is the target's own draw (law 3).
"""
