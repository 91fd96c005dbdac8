"""A DICOM node: images that arrive are marked and sent on.

``receive`` takes them, ``pool`` marks them, ``queue`` keeps them on the disk, ``forward`` sends them on, ``status``
tells how that goes, and ``service`` holds all together.
"""
