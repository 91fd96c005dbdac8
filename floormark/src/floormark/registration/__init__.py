"""Where a mark lies in an image that was cropped, scaled, turned, mirrored or inverted, without the original.

The mark repeats: the autocorrelation of the image shows its period and angle. Then its tiles are laid on top of each
other, and the pilot tells where they begin and which way round they are.
"""

from floormark.registration.periods import CANDIDATES, periods
from floormark.registration.pilots import Pilots
from floormark.registration.place import Picture, Place, seen_at

__all__ = ["CANDIDATES", "Picture", "Pilots", "Place", "periods", "seen_at"]
