"""Image files with their native bit depth: read, and written back whole with all that the format can keep."""

from samplewise.watermark.formats.files import read
from samplewise.watermark.formats.picture import Picture, StoredImage

__all__ = ["Picture", "StoredImage", "read"]
