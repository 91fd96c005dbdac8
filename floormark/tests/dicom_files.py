"""DICOM files for tests: those that come with pydicom, and small ones made to order."""

import warnings
from pathlib import Path
from typing import Any

import pydicom
from numpy.typing import NDArray
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"


def real(name: str) -> Path:
    path = get_testdata_file(name, download=False)
    assert isinstance(path, str)
    return Path(path)


def opened(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real files have real faults
        dataset = pydicom.dcmread(path)
        list(dataset.iterall())
    return dataset


def make(path: Path, pixels: NDArray[Any], syntax: str = ExplicitVRLittleEndian, **attributes: Any) -> Path:
    """A small DICOM file; an attribute of None is left out."""
    dataset = Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = SECONDARY_CAPTURE, generate_uid()
    dataset.PatientName = "Müller^Änne"
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.Rows, dataset.Columns = pixels.shape[:2]
    dataset.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    dataset.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    if pixels.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = 8 * pixels.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()
    dataset["PixelData"].VR = "OB" if pixels.itemsize == 1 else "OW"
    for name, value in attributes.items():
        if value is None:
            delattr(dataset, name)
        else:
            setattr(dataset, name, value)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.save_as(path, enforce_file_format=True)
    return path
