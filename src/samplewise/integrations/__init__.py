"""The methods inside other trainers: ``integrations.lightning`` and ``integrations.huggingface``."""

from samplewise.integrations.indexed import Indexed

__all__ = ["Indexed"]
