import math
import threading
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floormark.errors import ConfigurationError, DataError
from floormark.payload import Codec, Key, Kind, Payload
from floormark.payload.bch import MAX_BITS
from floormark.payload.codec import layouts

KEY, OTHER = Key(b"an example of a key"), Key(b"another example here")
keys = st.none() | st.binary(min_size=16, max_size=100).map(Key)
payloads = st.one_of(
    st.binary(min_size=1, max_size=16).map(lambda content: Payload(Kind.BYTES, content)),
    st.binary(min_size=1, max_size=16).map(lambda content: Payload.from_hex(content.hex())),
    st.text(st.characters(codec="utf-8"), min_size=1)
    .map(lambda text: text.encode()[:16].decode(errors="ignore"))
    .filter(bool)
    .map(Payload.from_text),
)


def logits_of(bits: NDArray[np.uint8]) -> NDArray[np.float64]:
    return 2.0 * bits.astype(np.float64) - 1.0


@given(payloads, keys)
def test_any_payload_comes_back_with_any_key(payload: Payload, key: Key | None) -> None:
    codec = Codec(200, key)
    bits = codec.encode(payload)
    assert bits.shape == (200,)
    assert set(bits.tolist()) <= {0, 1}
    reading = codec.decode(logits_of(bits))
    assert reading is not None
    assert (reading.payload, reading.corrected_errors) == (payload, 0)
    assert reading.confidence > 1 - 1e-15


@given(payloads, keys, st.data())
def test_up_to_t_errors_are_corrected_wherever_and_however_sure_they_are(
    payload: Payload, key: Key | None, data: st.DataObject
) -> None:
    codec = Codec(200, key)
    most = codec.correctable(len(payload.content))
    wrong = data.draw(st.lists(st.integers(0, 199), max_size=most, unique=True))
    logits = logits_of(codec.encode(payload))
    logits[wrong] *= -data.draw(st.floats(0.01, 100))
    reading = codec.decode(logits)
    assert reading is not None
    assert (reading.payload, reading.corrected_errors) == (payload, len(wrong))


@settings(max_examples=30)
@given(payloads, st.integers(0, 2**32 - 1), st.floats(0.02, 0.5))
def test_more_errors_give_the_payload_or_nothing(payload: Payload, seed: int, share: float) -> None:
    codec, random = Codec(200, KEY), np.random.default_rng(seed)
    logits = logits_of(codec.encode(payload)) * random.exponential(size=200)
    logits[random.random(200) < share] *= -1
    reading = codec.decode(logits)
    assert reading is None or reading.payload == payload


@settings(max_examples=10)
@given(payloads, st.sampled_from([None, OTHER, Key(KEY.secret + b"\0")]))
def test_another_key_reads_nothing(payload: Payload, key: Key | None) -> None:
    assert Codec(200, key).decode(logits_of(Codec(200, KEY).encode(payload))) is None
    assert Codec(200, KEY).decode(logits_of(Codec(200, key).encode(payload))) is None


def test_a_key_leaves_no_trace_of_the_payload_in_the_bits() -> None:
    differing = [np.mean(Codec(200, Key(bytes([n] * 16))).encode("A") != Codec(200).encode("A")) for n in range(50)]
    assert abs(np.mean(differing) - 0.5) < 5 * 0.5 / math.sqrt(50 * 200)


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("key", [None, KEY])
def test_a_network_that_always_says_the_same_carries_nothing(value: float, key: Key | None) -> None:
    assert Codec(200, key).decode(np.full(200, value)) is None


def test_random_bits_read_as_often_as_computed() -> None:
    codec = Codec(60)
    codec.layouts = layouts(60, checksum=5)[2:]  # short, so that false positives can be counted
    expected = sum(layout.false_positive_rate for layout in codec.layouts)
    random, trials, found = np.random.default_rng(0), 600, 0
    for _ in range(trials):
        try:
            found += codec.decode(random.normal(size=60)) is not None
        except DataError:  # a checksum that fits over a header that does not
            found += 1
    assert len(codec.layouts) > 1
    assert expected > 0.05
    deviation = math.sqrt(expected / trials)
    assert 0.6 * expected - 4 * deviation < found / trials < expected + 4 * deviation


def test_the_rate_of_false_positives_is_small_for_every_length() -> None:
    assert Codec(200).false_positive_rate < 1e-9
    assert max(Codec(bits).false_positive_rate for bits in (58, 63, 64, 100, 127, 128, 255, 256, MAX_BITS)) < 2**-30


def test_the_chance_of_a_reading_grows_with_its_errors_up_to_the_rate() -> None:
    codec = Codec(200)
    logits = logits_of(codec.encode(b"12345678"))
    chances = []
    for wrong in range(13):
        reading = codec.decode(logits)
        assert reading is not None
        assert reading.corrected_errors == wrong
        chances.append(reading.chance)
        logits[wrong] *= -1
    # Words at distance zero from a frame, counted by hand: 16 headers times every payload of 1 to 16 bytes.
    assert chances[0] == pytest.approx(16 * sum(256**n for n in range(1, 17)) / 2**200)
    assert chances == sorted(chances)
    assert chances[-1] <= Codec(200).false_positive_rate


def test_short_payloads_get_more_parity_and_every_frame_a_checksum() -> None:
    for bits in (58, 100, 200, 256, MAX_BITS):
        found = layouts(bits)
        strengths = [layout.code.correctable for layout in found]
        assert strengths == sorted(strengths, reverse=True)
        assert strengths[-1] >= 0.02 * bits
        for layout in found:
            assert 4 + 8 * layout.length + layout.checksum + layout.code.parity == bits
            assert layout.checksum >= 28 + bits.bit_length()


def test_a_uuid_fits_into_200_bits() -> None:
    assert Codec(200).max_bytes == 16
    payload = Payload.from_hex(uuid.UUID(int=7).hex)
    codec = Codec(200, KEY)
    reading = codec.decode(logits_of(codec.encode(payload)))
    assert reading is not None
    assert uuid.UUID(str(reading.message)) == uuid.UUID(int=7)


@pytest.mark.parametrize("bits", [58, 64, 100, 255, 256, MAX_BITS])
def test_other_numbers_of_bits(bits: int) -> None:
    codec = Codec(bits, KEY)
    content = bytes(range(codec.max_bytes))
    logits = logits_of(codec.encode(content))
    logits[: codec.correctable(len(content))] *= -1
    reading = codec.decode(logits)
    assert reading is not None
    assert reading.payload == Payload(Kind.BYTES, content)


def test_a_frame_is_the_same_in_every_version() -> None:
    # Images marked today must be read for years: this value may never change.
    assert (
        np.packbits(Codec(200, KEY).encode("ACC-2024-00123")).tobytes().hex()
        == "a0f90693ccc83a76ce06dfb9d8e4faaa5f0c9f9ed79fb9da98"
    )
    assert (
        np.packbits(Codec(200).encode(b"\0\1\2")).tobytes().hex()
        == "4d4753cadaa58d116b4b649635c6850811e120ef70a092227d"
    )


def test_fields_of_several_sizes_can_take_turns() -> None:
    for bits in (300, 200, 300):
        logits = logits_of(Codec(bits).encode(b"ab"))
        logits[:3] *= -1
        reading = Codec(bits).decode(logits)
        assert reading is not None
        assert reading.corrected_errors == 3


def test_threads_with_fields_of_several_sizes_do_not_disturb_each_other() -> None:
    wrong = []

    def work(bits: int) -> None:
        codec = Codec(bits)
        logits = logits_of(codec.encode(b"ab"))
        logits[:3] *= -1
        for _ in range(10):
            reading = codec.decode(logits)
            if reading is None or reading.payload is None or reading.payload.content != b"ab":
                wrong.append(bits)

    threads = [threading.Thread(target=work, args=(bits,)) for bits in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("payload", ["x" * 17, "ä" * 9, b"x" * 17, Payload.from_hex("00" * 17)])
def test_a_payload_that_is_too_long_is_refused_with_the_length_it_may_have(payload: Payload | str | bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"1 to 16 bytes, as 200 bits can hold, got 1[78]"):
        Codec(200).encode(payload)


@pytest.mark.parametrize("payload", ["", b""])
def test_an_empty_payload_is_refused(payload: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="at least one byte"):
        Codec(200).encode(payload)


@pytest.mark.parametrize("digits", ["abc", "xy", "0x12"])
def test_what_is_not_hexadecimal_is_refused(digits: str) -> None:
    with pytest.raises(ConfigurationError, match="pairs of hexadecimal digits"):
        Payload.from_hex(digits)


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="UTF-8"):
        Payload.from_text("\ud800")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        Payload(Kind.TEXT, b"\xff")


@pytest.mark.parametrize("logits", [np.zeros(199), np.zeros((1, 200)), np.full(200, np.nan), np.full(200, np.inf)])
def test_logits_that_cannot_be_right_are_refused(logits: NDArray[np.float64]) -> None:
    with pytest.raises(DataError, match="expected 200 finite logits"):
        Codec(200).decode(logits)


@pytest.mark.parametrize("bits", [0, -5, 20, 57, MAX_BITS + 1, True, 200.0])
def test_networks_with_too_few_or_too_many_bits_are_refused(bits: int) -> None:
    with pytest.raises(ConfigurationError, match="bits"):
        Codec(bits)


def test_a_watermark_of_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floormark.payload.codec.VERSION", 2)
    bits = Codec(200).encode("new")
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"format 2\.0, made by another version"):
        Codec(200).decode(logits_of(bits))


ties = st.lists(st.integers(0, 1), min_size=40, max_size=40).map(tuple)
salts = st.integers(0, 255).map(str)


@settings(max_examples=30)
@given(payloads, keys, ties, salts, st.integers(0, 6))
def test_tied_frames_come_back_with_what_ties_them(
    payload: Payload, key: Key | None, tie: tuple[int, ...], salt: str, wrong: int
) -> None:
    codec = Codec(255, key, content_bits=40)
    logits = logits_of(codec.encode(payload, tie, salt))
    logits[np.random.default_rng(wrong).permutation(255)[:wrong]] *= -1
    found = codec.decode(logits, salt)
    assert found is not None
    assert (found.payload, found.content_code, found.corrected_errors) == (payload, tie, wrong)
    assert wrong <= codec.correctable(len(payload.content))
    other = str((int(salt) + 1) % 256)
    assert codec.decode(logits, other) is None


def test_salts_give_other_bits_and_the_same_one_the_same() -> None:
    codec = Codec(255, KEY, content_bits=40)
    frames = {salt: codec.encode("patient 4711", (0, 1) * 20, str(salt)).tobytes() for salt in range(256)}
    assert len(set(frames.values())) == 256
    assert frames[7] == Codec(255, KEY, content_bits=40).encode("patient 4711", (0, 1) * 20, "7").tobytes()
    first, second = (np.frombuffer(frames[salt], np.uint8) for salt in (0, 1))
    assert 90 < np.count_nonzero(first != second) < 165  # as coins fall


def test_tied_and_other_frames_are_not_taken_for_each_other() -> None:
    plain, tied = Codec(255, KEY), Codec(255, KEY, content_bits=40)
    assert tied.decode(logits_of(plain.encode("first"))) is None
    assert plain.decode(logits_of(tied.encode("second"))) is None
    assert tied.false_positive_rate < 1e-8
    assert tied.max_bytes == 16
    with pytest.raises(ConfigurationError, match="content code of 40 bits"):
        tied.encode("x", (0, 1, 1))
    assert tied.decode(logits_of(tied.encode("x"))).content_code == (0,) * 40  # type: ignore[union-attr]
