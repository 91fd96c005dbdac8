import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floormark.certificate import CERTIFICATE_FORMAT, Fidelity, ImageCertificate, Signature, sha256
from floormark.errors import DataError, OutputError

finite = st.floats(allow_nan=False, allow_infinity=False)
changed = st.builds(
    Fidelity,
    peak=st.integers(1, 65535),
    psnr=finite,
    ssim=st.none() | st.floats(-1, 1),
    max_difference=st.integers(1, 65535),
    changed_share=st.floats(1e-9, 1),
    protected_pixels=st.integers(0, 10**8),
    protected_unchanged=st.booleans(),
    shown=st.floats(1, 65535),
    shown_psnr=finite,
    largest_change=st.floats(0, 65535),
    unit=st.text(max_size=20),
    min_adjusted_patch_psnr=finite,
    worst_patch=st.just("32,0,32,8"),
)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
signatures = st.builds(Signature, st.just("ed25519"), digests, st.binary(min_size=64, max_size=64).map(bytes.hex))
certificates = st.builds(
    ImageCertificate,
    digests,
    digests,
    digests,
    digests,
    st.text(max_size=200),
    st.floats(25, 100),
    st.integers(8, 500),
    st.integers(0, 8),
    changed,
    st.none() | digests | st.just("1,2,3,4"),
    st.none() | signatures,
)


def example(**changes: Any) -> ImageCertificate:
    found = ImageCertificate(
        original_sha256="a" * 64,
        result_sha256="b" * 64,
        original_pixels_sha256="c" * 64,
        result_pixels_sha256="d" * 64,
        model="swift-200",
        floor=40.0,
        bits=200,
        bit_errors=1,
        fidelity=Fidelity(255, 41.5, 0.99, 3, 0.5, 7, True, 255.0, 41.5, 3.0, "", 41.5, "32,0,32,8"),
    )
    return dataclasses.replace(found, **changes)


def test_the_floor_decides() -> None:
    assert example(floor=41.5).satisfied
    assert not example(floor=41.51).satisfied
    same = Fidelity(255, None, 1.0, 0, 0.0, 7, True, 255.0, None, 0.0, "", None, None)
    assert example(fidelity=same, floor=100.0).satisfied  # nothing changed
    for lower in (
        dataclasses.replace(example().fidelity, shown_psnr=39.9),
        dataclasses.replace(example().fidelity, min_adjusted_patch_psnr=39.9),
    ):
        assert not example(fidelity=lower).satisfied
    touched = dataclasses.replace(same, protected_unchanged=False)
    assert not example(fidelity=touched, floor=25.0).satisfied


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(certificates)
def test_json_gives_back_every_certificate(tmp_path: Path, certificate: ImageCertificate) -> None:
    certificate.write(tmp_path / "a.json")
    json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert ImageCertificate.read(tmp_path / "a.json") == certificate


def damaged(**changes: Any) -> dict[str, Any]:
    inner = changes.pop("inner", {})
    values = {"format": CERTIFICATE_FORMAT, "satisfied": True, **dataclasses.asdict(example())}
    values["fidelity"] |= inner
    return {key: value for key, value in (values | changes).items() if value != "missing"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read as a certificate of a marked image: Expecting value"),
        ("[" * 100_000, "cannot be read as a certificate of a marked image: maximum recursion depth"),
        ("[]", "cannot be read as a certificate of a marked image: expected an object, got list"),
        ('{"floor": 40.0, "floor": 30.0}', "an entry is there twice"),
        ('{"format": NaN}', "NaN is not strict JSON"),
        (damaged(format="other"), "expected a certificate"),
        (damaged(florr=1), "unknown entry 'florr'. Did you mean 'floor'"),
        (damaged(floor="missing"), "entries floor, got none"),
        (damaged(floor="40"), "expected floor to be a finite float, got '40'"),
        (damaged(floor=40), "expected floor to be a finite float, got 40"),
        (damaged(bits=True), "expected bits to be a finite int, got True"),
        (damaged(bit_errors=201), "expected 0 to 200 bit errors, got 201"),
        (damaged(original_sha256="A" * 64), "SHA-256"),
        (damaged(protected="1,2,3"), "expected x,y,w,h or a SHA-256 as the protected region, got '1,2,3'"),
        (damaged(protected=["1,2,3,4"]), "expected protected to be a finite str or null"),
        (damaged(signature="abc"), "entries of signature, got str"),
        (damaged(signature={"algorithm": "ed25519", "public_key": "0" * 64}), "expected the entries value, got none"),
        (
            damaged(signature={"algorithm": "rsa", "public_key": "0" * 64, "value": "0" * 128}),
            "algorithm ed25519, got 'rsa'",
        ),
        (damaged(signature={"algorithm": "ed25519", "public_key": "", "value": "0" * 128}), "64 hexadecimal digits"),
        (damaged(signature={"algorithm": "ed25519", "public_key": "0" * 64, "value": "0" * 127}), "a signature of 128"),
        (damaged(fidelity=None), "entries of fidelity, got NoneType"),
        (damaged(floor=-1000.0), "expected a floor of 25 to 100 dB, got -1000"),
        (damaged(floor=1e300), "expected a floor of 25 to 100 dB"),
        (json.dumps(damaged()).replace("40.0", "1e999"), "expected floor to be a finite float, got inf"),
        (json.dumps(damaged()).replace("40.0", "9" * 5000), "cannot be read as a certificate"),
        (damaged(bits=10**4000), "bits .* got a longer one"),
        (damaged(model="x" * 10**5), "model .* got a longer one"),
        (damaged(model=[[[]] * 10**4]), "expected model to be a finite str, got list"),
        (damaged(**{"x" * 10**5: 1}), "unknown entry"),
        (damaged(inner={"psnr": None}), "agree on whether a pixel changed"),
        (damaged(inner={"shown_psnr": None}), "agree on whether a pixel changed"),
        (damaged(inner={"min_adjusted_patch_psnr": None, "worst_patch": None}), "agree on whether a pixel changed"),
        (damaged(inner={"worst_patch": "everywhere"}), "worst patch"),
        (damaged(inner={"shown": 0.0}), "peak and shown above 0"),
        (damaged(inner={"largest_change": None}), "largest_change to be a finite float"),
        (damaged(inner={"ssim": 1.5}), "SSIM"),
        (damaged(inner={"protected_pixels": -1}), "counts of at least 0"),
        (damaged(inner={"changed_share": 1.5}), "changed_share in"),
        (damaged(inner={"protected_unchanged": 1}), "protected_unchanged to be a finite bool, got 1"),
        (damaged(satisfied=False), "expected satisfied to be True by its numbers, got False"),
        (damaged(satisfied="missing"), "by its numbers, got None"),
    ],
)
def test_what_is_not_a_certificate_is_refused(content: str | dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        ImageCertificate.read(tmp_path / "a.json")
    assert str(caught.value).startswith(str(tmp_path / "a.json"))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("entry", [*example().entries(), *dataclasses.asdict(example().fidelity)])
def test_a_certificate_that_lacks_an_entry_is_refused(entry: str, tmp_path: Path) -> None:
    values = damaged()
    (values if entry in values else values["fidelity"]).pop(entry)
    (tmp_path / "a.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match="expected a certificate" if entry == "format" else "expected"):
        ImageCertificate.read(tmp_path / "a.json")


def test_hashes_are_of_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 5000)
    assert sha256(tmp_path / "a") == hashlib.sha256(bytes(range(256)) * 5000).hexdigest()
    with pytest.raises(DataError, match="No such file"):
        sha256(tmp_path / "b")


def test_a_certificate_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        example().write(tmp_path / "file" / "a.json")
    with pytest.raises(DataError, match="cannot be read"):
        ImageCertificate.read(tmp_path / "none.json")
