"""A page on this machine to inspect marked images, and to mark some: ``floormark serve``."""
