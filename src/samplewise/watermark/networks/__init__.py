"""Networks that hide a message in an image and read it back."""
