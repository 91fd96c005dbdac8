"""Fewest bits with a PSNR floor under every block: a small learned codec, its arms, its files."""
