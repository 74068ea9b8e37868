"""What a text would go on with, if it went on as after the latest match of its end."""

import numpy as np
from numba import njit

LONGEST_COPIED_MATCH = 8
COPY_WINDOW = 1024  # last tokens that are searched


@njit(cache=True, nogil=True)
def prompt_lookup(token_ids, num):
    """(length of the match, int32 [num] what followed it); length 0 and zeros without a match.

    token_ids: int [n]. The longest match of the last tokens counts, of equally long ones the
    latest; lengths beyond LONGEST_COPIED_MATCH are equal. Where the text ends before `num` tokens
    have followed, it goes on with itself.
    """
    best, place = 0, -1
    last = len(token_ids) - 1
    for end in range(last - 1, max(last - COPY_WINDOW, -1), -1):
        n = 0
        while n < LONGEST_COPIED_MATCH and n <= end and token_ids[end - n] == token_ids[last - n]:
            n += 1
        if n > best:
            best, place = n, end
            if best == LONGEST_COPIED_MATCH:
                break
    following = np.zeros(num, np.int32)
    if best > 0:
        for k in range(num):
            following[k] = token_ids[place + 1 + k % (last - place)]
    return best, following
