"""The paper's second study (section V-B): hide a message in images, with a PSNR floor under every one of them."""
