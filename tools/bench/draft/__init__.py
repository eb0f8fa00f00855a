"""What drafts are worth on the bundled model: ``python -m tools.bench.draft`` (see ``__main__``)."""
