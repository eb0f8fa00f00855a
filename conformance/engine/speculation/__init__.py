"""Speculation on the fast engine: any drafter, width, batch and stop gives the tokens of no drafter at all.

``drive.py`` serves requests with and without drafts, ``drafters.py`` are drafters that are right as often as
a test wants, ``draws.py`` draws groups. The programs ``lifecycle``, ``thinking``, ``stop_chat`` and
``concurrent`` run on any artifact.
"""
