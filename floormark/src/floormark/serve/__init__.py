"""A page on this machine to look at marked images, and to mark some: ``floormark serve``."""
