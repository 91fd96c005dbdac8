"""Where a mark lies in an image that was cropped, resized, rotated, mirrored or inverted, without the original.

The mark repeats: the autocorrelation of the image shows its period and angle. Then its tiles are laid on top of each
other, and the pilot tells where they begin and how they are oriented.
"""

from floormark.registration.alignment import Alignment, resample
from floormark.registration.periods import CANDIDATES, periods
from floormark.registration.pilots import Pilots

__all__ = ["CANDIDATES", "Alignment", "Pilots", "periods", "resample"]
