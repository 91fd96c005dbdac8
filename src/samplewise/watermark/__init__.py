"""Image watermarking with a quality floor for every image (paper, section V-B)."""
