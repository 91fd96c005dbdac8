"""A DICOM node: images that arrive are marked and sent on.

``receive`` takes them, ``queue`` keeps them on the disk, ``forward`` sends them on, ``status`` tells how that goes, and
``service`` holds the four together.
"""
