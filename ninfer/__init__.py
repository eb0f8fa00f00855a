"""NInfer: a local LLM server for Qwen3.5-family hybrid models.

``CONTRIBUTING.md`` maps the packages below and says who may import whom.
"""

__version__ = "0.1.0"
