import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floormark.errors import ConfigurationError
from floormark.payload.bch import MAX_BITS, PRIMITIVE, BchCode, _generator, corrected, nearest, parity_bits

# The generators that textbooks list, in octal, by n and t (Lin and Costello, appendix C).
TEXTBOOK = {
    (15, 2): 0o721,
    (15, 3): 0o2467,
    (31, 2): 0o3551,
    (31, 3): 0o107657,
    (63, 2): 0o12471,
    (63, 3): 0o1701317,
    (127, 2): 0o41567,
    (255, 2): 0o267543,
}


def all_codewords(code: BchCode) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.array(
        [code.encode(np.array(word, np.uint8)) for word in itertools.product((0, 1), repeat=code.information)]
    )


@pytest.mark.parametrize(("size", "generator"), TEXTBOOK.items())
def test_generators_are_those_of_the_textbook(size: tuple[int, int], generator: int) -> None:
    bits, correctable = size
    assert _generator(bits.bit_length(), correctable) == generator
    assert parity_bits(bits, correctable) == generator.bit_length() - 1


@pytest.mark.parametrize("exponent", PRIMITIVE)
def test_the_polynomials_are_primitive(exponent: int) -> None:
    value, order = 2, 1
    while value != 1:
        value, order = value << 1, order + 1
        if value >> exponent:
            value ^= PRIMITIVE[exponent]
    assert order == 2**exponent - 1


@pytest.mark.parametrize(("bits", "correctable"), [(15, 2), (15, 3), (13, 2), (20, 3), (31, 5)])
def test_codewords_differ_in_at_least_2t_plus_1_bits(bits: int, correctable: int) -> None:
    weights = all_codewords(BchCode(bits, correctable)).sum(1)
    assert weights[0] == 0
    assert weights[1:].min() >= 2 * correctable + 1


@given(st.data(), st.sampled_from([(20, 3), (60, 2), (100, 7), (200, 4), (200, 12), (200, 22), (300, 9)]))
def test_up_to_t_errors_are_corrected(data: st.DataObject, size: tuple[int, int]) -> None:
    code = BchCode(*size)
    seed = data.draw(st.integers(0, 2**32 - 1))
    codeword = code.encode(np.random.default_rng(seed).integers(0, 2, code.information, np.uint8))
    wrong = data.draw(st.lists(st.integers(0, code.bits - 1), max_size=code.correctable, unique=True))
    word = codeword.copy()
    word[wrong] ^= 1
    (found,) = corrected([code], word)
    assert found is not None
    np.testing.assert_array_equal(found, codeword)


def test_words_beyond_reach_are_refused_as_often_as_counting_says() -> None:
    code = BchCode(15, 2)
    words = np.array(list(itertools.product((0, 1), repeat=15)), np.uint8)[::16]
    near = (all_codewords(code)[:, None] != words).sum(2).min(0)
    for word, distance in zip(words, near, strict=True):
        (found,) = corrected([code], word)
        assert (found is not None) == (distance <= 2)
        assert found is None or np.count_nonzero(found != word) == distance


@pytest.mark.parametrize(("bits", "correctable"), [(15, 3), (12, 2), (31, 6)])
def test_soft_decoding_finds_the_likeliest_codeword_almost_always(bits: int, correctable: int) -> None:
    code = BchCode(bits, correctable)
    words, random = all_codewords(code), np.random.default_rng(0)
    agreed = 0
    for _ in range(200):
        logits = (2.0 * words[random.integers(len(words))] - 1.0) + random.normal(size=bits)
        likeliest = words[((2.0 * words - 1.0) @ logits).argmax()]
        (found,) = nearest([code], logits)
        assert (found == words).all(1).any()
        agreed += np.array_equal(found, likeliest)
    assert agreed >= 196


def test_soft_decoding_reads_what_hard_decoding_cannot() -> None:
    code, random = BchCode(200, 12), np.random.default_rng(0)
    hard = soft = 0
    for _ in range(40):
        codeword = code.encode(random.integers(0, 2, code.information, np.uint8))
        logits = (2.0 * codeword - 1.0) + random.normal(size=200) / 1.405  # 8 % wrong bits
        (found,) = corrected([code], (logits > 0).astype(np.uint8))
        hard += found is not None and np.array_equal(found, codeword)
        (likeliest,) = nearest([code], logits)
        soft += np.array_equal(likeliest, codeword)
    assert hard <= 20
    assert soft >= 35


@pytest.mark.parametrize("bits", [60, 255, 300])
def test_codes_decoded_together_read_the_same_as_each_alone(bits: int) -> None:
    codes, random = [BchCode(bits, correctable) for correctable in (5, 1, 3)], np.random.default_rng(bits)
    for noise in (0.3, 0.6, 5.0):
        sent = codes[0].encode(random.integers(0, 2, codes[0].information, np.uint8))
        logits = 2.0 * sent - 1.0 + noise * random.normal(size=bits)
        word = (logits > 0).astype(np.uint8)
        for code, hard, soft in zip(codes, corrected(codes, word), nearest(codes, logits), strict=True):
            np.testing.assert_array_equal(hard, next(corrected([code], word)))
            np.testing.assert_array_equal(soft, next(nearest([code], logits)))
            assert not (code.checks @ soft % 2).any()


@pytest.mark.parametrize(("bits", "correctable"), [(3, 1), (MAX_BITS + 1, 2), (31, 20), (31, 0)])
def test_codes_that_do_not_exist_are_refused(bits: int, correctable: int) -> None:
    with pytest.raises(ConfigurationError, match="bits"):
        BchCode(bits, correctable)
