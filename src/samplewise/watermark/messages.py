"""Messages to train and to test with."""

import hashlib

import numpy as np
import torch
from torch import Tensor

__all__ = ["fixed_messages", "random_messages"]


def random_messages(count: int, bits: int, *, device: torch.device | None = None) -> Tensor:
    """New messages from PyTorch's generator, zeros and ones of float32, shape ``(B, L)``."""
    return torch.randint(0, 2, (count, bits), device=device).float()


def fixed_messages(numbers: Tensor, bits: int) -> Tensor:
    """The message that belongs to each image's number whenever it is tested, ``(B,)`` to ``(B, L)``."""
    rows = [hashlib.shake_256(f"message {number}".encode()).digest(-(-bits // 8)) for number in numbers.tolist()]
    packed = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    unpacked = np.unpackbits(packed, axis=1, count=bits)
    return torch.from_numpy(unpacked).float().to(numbers.device)
