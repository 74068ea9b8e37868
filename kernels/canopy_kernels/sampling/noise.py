"""Counter-based noise: every number is a pure function of (seed, position, token, stream, branch).

    key      = (seed mod 2^32, seed div 2^32)
    counter  = (token div 4, position, stream, branch)
    word     = philox4x32-10(counter, key)[token mod 4]            uint32
    uniform  = (word + 1/2) / 2^32                                 float64, inside (0, 1)
    gumbel   = -ln(-ln(uniform))                                   float64, rounded to float32

Nothing depends on the batch, the slice asked for or the device, so the drafter and the verifier
share noise without sending it. Philox and its constants are those of Salmon, Moraes, Dror, Shaw,
"Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). `uniform` is exact in float64, and the
rounding to float32 hides the last bits of a float64 logarithm, so that other implementations of
this layout give the same float32 numbers, but for one in many millions.

Streams never share a counter. A branch tells apart independent draws of one stream at one
position; the noise that drafter and verifier share has branch 0.
"""

import numpy as np
from numba import njit

TARGET = 0  # decides the target's token; shared with the drafter in coupled mode
DRAFT = 1  # what the drafter draws for the ratio rules
ACCEPT = 2  # accept tests and residual draws of the ratio rules

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_WORD_BITS = np.uint64(32)
_ROUNDS = 10


def gumbel(
    seed: int, position: int, token_ids: np.ndarray, stream: int = TARGET, branch: int = 0
) -> np.ndarray:
    """Standard Gumbel noise of the given tokens; float32 [n].

    seed: unsigned 64 bit. position: 0-based index in the sequence of the token to be chosen.
    """
    tokens = np.asarray(token_ids, np.uint32)
    words = _words(tokens >> 2, _key(seed), _place(position, stream, branch))
    return _gumbel_of(words[np.arange(len(tokens)), tokens & 3])


def gumbel_row(seed: int, position: int, vocab_size: int) -> np.ndarray:
    """`gumbel` of every token of the vocabulary, on stream TARGET; float32 [vocab_size]."""
    counters = np.arange((vocab_size + 3) // 4, dtype=np.uint32)
    words = _words(counters, _key(seed), _place(position, TARGET, 0))
    return _gumbel_of(words.reshape(-1))[:vocab_size]


def gumbel_argmax(logits: np.ndarray, seed: int, position: int) -> int:
    """argmax of logits + gumbel_row, in float64, of equal ones the lowest token.

    logits: float32 [V]. Most tokens are ruled out by a bound on their noise, never computing it.
    """
    counters = np.arange((len(logits) + 3) // 4, dtype=np.uint32)
    words = _words(counters, _key(seed), _place(position, TARGET, 0))
    return int(_argmax_under_bound(logits, words.reshape(-1), np.argmax(logits)))


def uniform(seed: int, position: int, index: int, stream: int, branch: int = 0) -> float:
    """The index-th uniform number of a position, inside (0, 1)."""
    counter = np.array([index // 4], np.uint32)
    words = _words(counter, _key(seed), _place(position, stream, branch))
    return (float(words[0, index % 4]) + 0.5) * 2.0**-32


def philox_reference(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox 4x32-10 in plain NumPy: uint32 [n, 4] counters to uint32 [n, 4] words."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    low = np.uint64(0xFFFFFFFF)
    for step in range(_ROUNDS):
        k0, k1 = (
            (np.uint64(k) + np.uint64(step) * w) & low for k, w in zip(key, _WEYL, strict=True)
        )
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> _WORD_BITS) ^ c1 ^ k0, product1 & low
        c2, c3 = (product0 >> _WORD_BITS) ^ c3 ^ k1, product0 & low
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def gumbel_reference(
    seed: int, position: int, token_ids: np.ndarray, stream: int = TARGET, branch: int = 0
) -> np.ndarray:
    """`gumbel` in plain NumPy."""
    tokens = np.asarray(token_ids, np.int64)
    coordinates = np.broadcast_to(np.array([position, stream, branch]), (len(tokens), 3))
    counters = np.column_stack([tokens // 4, coordinates])
    words = philox_reference(counters, (seed & 0xFFFFFFFF, seed >> 32))
    uniforms = (words[np.arange(len(tokens)), tokens % 4] + 0.5) * 2.0**-32
    return (-np.log(-np.log(uniforms))).astype(np.float32)


def _key(seed: int) -> np.ndarray:
    return np.array([int(seed) & 0xFFFFFFFF, int(seed) >> 32], np.uint32)


def _place(position: int, stream: int, branch: int) -> np.ndarray:
    return np.array([position, stream, branch], np.uint32)


@njit(inline="always")
def _philox(c0, c1, c2, c3, k0, k1):
    for _ in range(_ROUNDS):
        product0 = np.uint64(c0) * _MULTIPLIERS[0]
        product1 = np.uint64(c2) * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            np.uint32(product1 >> _WORD_BITS) ^ c1 ^ k0,
            np.uint32(product1),
            np.uint32(product0 >> _WORD_BITS) ^ c3 ^ k1,
            np.uint32(product0),
        )
        k0 = np.uint32(k0 + _WEYL[0])
        k1 = np.uint32(k1 + _WEYL[1])
    return c0, c1, c2, c3


# The three functions below keep to what AVX2 has (no signed 64-bit shift, no conversion between
# 64-bit integers and floats), so that the loop over the vocabulary is vectorised.
_MAGIC = np.uint64(0x4330000000000000)  # 2^52 as a float64: or-ing a small integer in adds it
_MANTISSA_BITS = np.uint64(52)
_ONE = np.uint64(0x3FF0000000000000)  # 1.0
_LN2 = 0.6931471805599453
_ROUNDING = 1e-4  # more than the rounding of noise to float32 can add
_BIAS_TO_ROOT_HALF = np.uint64(0x3FF0000000000000 - 0x3FE6A09E00000000)  # 1.0 less sqrt(1/2)


@njit(inline="always")
def _to_float(n):
    return np.uint64(n | _MAGIC).view(np.float64) - 4503599627370496.0


@njit(inline="always")
def _ln(x):
    """Natural logarithm of a positive normal float64, by the series of FreeBSD's e_log.c.

    x = 2^k * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), s = f / (2 + f), and
    ln(1 + f) = f - (f^2/2 - s * (f^2/2 + R(s^2))).
    """
    bits = np.float64(x).view(np.uint64)
    biased = (bits + _BIAS_TO_ROOT_HALF) >> _MANTISSA_BITS
    f = np.uint64(bits - (biased << _MANTISSA_BITS) + _ONE).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = 0.1531383769920937332 + z * 0.1479819860511658591
    r = 0.2222219843214978396 + z * (0.1818357216161805012 + z * r)
    r = z * (
        0.6666666666666735130 + z * (0.3999999999940941908 + z * (0.2857142874366239149 + z * r))
    )
    half_square = 0.5 * f * f
    exponent = _to_float(biased) - 1023.0
    return exponent * _LN2 - ((half_square - s * (half_square + r)) - f)


@njit(inline="always")
def _gumbel_of_word(word):
    return np.float32(-_ln(-_ln((_to_float(np.uint64(word)) + 0.5) * 2.0**-32)))


@njit(cache=True)
def _words(counters, key, coordinates):
    words = np.empty((counters.shape[0], 4), np.uint32)
    for i in range(counters.shape[0]):
        w0, w1, w2, w3 = _philox(
            counters[i], coordinates[0], coordinates[1], coordinates[2], key[0], key[1]
        )
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = w0, w1, w2, w3
    return words


@njit(cache=True, error_model="numpy")
def _gumbel_of(words):
    noise = np.empty(words.shape[0], np.float32)
    for i in range(words.shape[0]):
        noise[i] = _gumbel_of_word(words[i])
    return noise


@njit(cache=True, error_model="numpy")
def _argmax_under_bound(logits, words, start):
    """-ln U >= 1 - U >= 2^e, so the noise is at most -e ln 2 where e is the exponent of 1 - U."""
    best = start
    best_score = np.float64(logits[start]) + _gumbel_of_word(words[start])
    for token in range(logits.shape[0]):
        rest = 1.0 - (_to_float(np.uint64(words[token])) + 0.5) * 2.0**-32
        exponent = _to_float(np.float64(rest).view(np.uint64) >> _MANTISSA_BITS) - 1023.0
        if logits[token] - exponent * _LN2 + _ROUNDING >= best_score:
            score = np.float64(logits[token]) + _gumbel_of_word(words[token])
            if score > best_score or (score == best_score and token < best):
                best, best_score = token, score
    return best
