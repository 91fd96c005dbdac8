"""How good a trained network is on the files it writes: quality and bit errors of every image, also after attacks."""

from samplewise.watermark.evaluation.network import Evaluation, evaluate_network
from samplewise.watermark.evaluation.summary import Attacked, Summary, summarise

__all__ = ["Attacked", "Evaluation", "Summary", "evaluate_network", "summarise"]
