"""What happens to images between embedding and reading, differentiable, so that training can prepare for it."""

from samplewise.watermark.noise.layer import Noise, parse_noise

__all__ = ["Noise", "parse_noise"]
