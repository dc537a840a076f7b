"""Numbers as decimal digits, for the compiled modules."""

from libc.string cimport memcpy

cdef enum:
    DIGITS_MAX = 20  # of an unsigned number of 64 bits


cdef inline int put_digits(unsigned char *to, unsigned long long number) noexcept:
    """How many were written to `to`, which must have room for DIGITS_MAX."""
    cdef unsigned char digits[DIGITS_MAX]
    cdef int at = DIGITS_MAX
    while True:  # ends at 0 at the latest: 2 ** 64 has 20 digits
        at -= 1
        digits[at] = 48 + number % 10
        number //= 10
        if number == 0:
            break
    memcpy(to, digits + at, DIGITS_MAX - at)
    return DIGITS_MAX - at
