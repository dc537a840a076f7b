# cython: language_level=3, cdivision=True
"""The hot path in C: rows to JSON, events around them. Optional: where it is missing, `cdc.encode.envelope` does the same.

Nothing is decided here. Each class does what its namesake in Python does, byte for byte, for what nearly all rows are,
and calls the column's own encoder, or raises, for the rest; the namesakes are the oracles (tests/property/test_compiled.py).

Indexes of lists and tuples are checked, but where a function says why they need not be. C does not check pointers: each
function that is given one says what may be read from it, or checks it against an end.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove

from cdc.encode.digits cimport DIGITS_MAX, put_digits

from orjson import loads

from cdc.encode import json_text
from cdc.model.change import UNCHANGED, Change, Op, Transaction


cdef extern from "Python.h":
    ctypedef struct PyObject
    PyObject *PyBytes_New "PyBytes_FromStringAndSize" (const char *, Py_ssize_t)
    int _PyBytes_Resize(PyObject **, Py_ssize_t) except -1
    void Py_XDECREF(PyObject *)
    double PyOS_string_to_double(const char *, char **, PyObject *) except? -1.0


cdef extern from *:
    """
    /* bit 0: a byte that JSON escapes; bit 7: one that is not ASCII. Compilers make vectors of this loop. */
    static unsigned char cdc_seen(const unsigned char *s, Py_ssize_t n) {
        unsigned char seen = 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            unsigned char c = s[i];
            seen |= (unsigned char)((c < 0x20) | (c == 0x22) | (c == 0x5C)) | (c & 0x80);
        }
        return seen;
    }
    """
    unsigned char cdc_seen(const unsigned char *, Py_ssize_t) noexcept


# ---- a buffer that grows ----

cdef struct Out:
    unsigned char *start
    size_t size
    size_t room

cdef enum:
    ROOM = 1 << 16
    KEPT = 1 << 20

cdef unsigned char *_spare = NULL
cdef size_t _spare_room = 0


cdef int take(Out *out) except -1:
    """One at a time is kept for the next: no other thread has it meanwhile, whatever an encoder in Python does."""
    global _spare
    out.size = 0
    if _spare != NULL:
        out.start, out.room = _spare, _spare_room
        _spare = NULL
        return 0
    out.start = <unsigned char *>malloc(ROOM)
    out.room = ROOM
    if out.start == NULL:
        raise MemoryError
    return 0


cdef void give(Out *out) noexcept:
    global _spare, _spare_room
    if _spare == NULL and out.room <= KEPT:
        _spare, _spare_room = out.start, out.room
    else:
        free(out.start)
    out.start = NULL


cdef int grow(Out *out, size_t more) except -1:
    cdef size_t room = out.room
    while room - out.size < more:
        room *= 2
    cdef unsigned char *start = <unsigned char *>malloc(room)
    if start == NULL:
        raise MemoryError
    memcpy(start, out.start, out.size)
    free(out.start)
    out.start, out.room = start, room
    return 0


cdef inline int room_for(Out *out, size_t more) except -1:
    if out.room - out.size < more:
        grow(out, more)
    return 0


cdef inline int put(Out *out, const void *text, size_t size) except -1:
    room_for(out, size)
    memcpy(out.start + out.size, text, size)
    out.size += size
    return 0


cdef inline int put_bytes(Out *out, object text) except -1:
    return put(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline int put_number(Out *out, unsigned long long number) except -1:
    room_for(out, DIGITS_MAX)
    out.size += put_digits(out.start + out.size, number)
    return 0


cdef inline int put_signed(Out *out, long long number) except -1:
    if number < 0:
        put(out, b"-", 1)
        return put_number(out, 0 - <unsigned long long>number)
    return put_number(out, number)


cdef inline int put_hex(Out *out, unsigned long long number, int least) except -1:
    """So many digits, 16 at most, more if it takes more."""
    cdef unsigned char digits[16]
    cdef int at = 16
    while number or at > 16 - least:
        at -= 1
        digits[at] = b"0123456789abcdef"[number & 15]
        number >>= 4
    return put(out, digits + at, 16 - at)


# ---- values ----

cdef enum:
    CALLED, AS_IS, QUOTED, TEXT, T_OR_F, ONE_OR_ZERO, FLOATING, DOUBLE, MICROS, MILLIS, WITH_ZONE, INSTANT, DAYS, CLOCK

cdef dict _CODES = {
    "as_is": AS_IS, "quoted": QUOTED, "text": TEXT, "t_or_f": T_OR_F, "one_or_zero": ONE_OR_ZERO, "floating": FLOATING,
    "double": DOUBLE, "micros": MICROS, "millis": MILLIS, "with_zone": WITH_ZONE, "instant": INSTANT, "days": DAYS,
    "clock": CLOCK,
}


def forms():
    """The names of `json_text.FORMS` that are known here."""
    return list(_CODES)


cdef int escaped(Out *out, const unsigned char *text, Py_ssize_t size) except -1:
    """A JSON string. Raises UnicodeDecodeError for what is not UTF-8."""
    cdef unsigned char seen = cdc_seen(text, size), c
    cdef Py_ssize_t i
    cdef unsigned char *to
    if seen & 0x80:
        PyUnicode_DecodeUTF8(<const char *>text, size, NULL)
    if not seen & 1:
        room_for(out, size + 2)
        to = out.start + out.size
        to[0] = 34
        memcpy(to + 1, text, size)
        to[size + 1] = 34
        out.size += size + 2
        return 0
    room_for(out, 6 * size + 2)
    to = out.start + out.size
    to[0] = 34
    to += 1
    for i in range(size):
        c = text[i]
        if c >= 0x20 and c != 34 and c != 92:
            to[0] = c
            to += 1
            continue
        to[0] = 92
        if c == 34 or c == 92:
            to[1] = c
        elif c == 8:
            to[1] = 98
        elif c == 9:
            to[1] = 116
        elif c == 10:
            to[1] = 110
        elif c == 12:
            to[1] = 102
        elif c == 13:
            to[1] = 114
        else:
            memcpy(to + 1, b"u00", 3)
            to[4] = 48 + (c >> 4)
            to[5] = b"0123456789abcdef"[c & 15]
            to += 4
        to += 2
    to[0] = 34
    out.size = to + 1 - out.start
    return 0


cdef inline int two(const unsigned char *text) noexcept:
    """A number of two digits; -1 for anything else."""
    cdef unsigned int high = text[0] - 48, low = text[1] - 48
    return <int>(high * 10 + low) if high < 10 and low < 10 else -1


cdef const unsigned char *_LENGTHS = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


cdef inline long long days(const unsigned char *text) noexcept:
    """Of ``2024-03-05``, since 1970; -1 before that, for a day that is not, and for anything else. Reads 10 bytes.

    http://howardhinnant.github.io/date_algorithms.html#days_from_civil
    """
    cdef int century = two(text), year = two(text + 2), month, day, era, of_era
    if text[4] != 45 or text[7] != 45:
        return -1
    month, day = two(text + 5), two(text + 8)
    if century < 0 or year < 0 or month < 1 or month > 12 or day < 1:
        return -1
    year += century * 100
    if day > _LENGTHS[month] and not (
        month == 2 and day == 29 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    ):
        return -1
    if year < 1970:
        return -1
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    day = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return <long long>era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + day - 719468


cdef inline long seconds_of_day(const unsigned char *text) noexcept:
    """Of ``12:34:56``; -1 for anything else, 24:00:00 included. Reads 8 bytes."""
    cdef int hours = two(text), minutes = two(text + 3), seconds = two(text + 6)
    if text[2] != 58 or text[5] != 58 or hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return -1
    return -1 if seconds < 0 or seconds > 59 else (hours * 60 + minutes) * 60 + seconds


cdef inline bint are_digits(const unsigned char *text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size):
        if text[i] < 48 or text[i] > 57:
            return False
    return True


cdef int with_fraction(
    Out *out, long long seconds, const unsigned char *text, Py_ssize_t size, int digits
) except -1:
    """Seconds and a fraction such as ``.25`` or none, as one number; 0 if that is not what it is."""
    cdef int i
    if size == 1 or size > digits + 1 or (size and text[0] != 46) or not are_digits(text + 1, size - 1):
        return 0
    put_number(out, seconds)
    room_for(out, 6)
    for i in range(digits):
        out.start[out.size + i] = text[i + 1] if i + 1 < size else 48
    out.size += digits
    return 1


cdef int instant(Out *out, const unsigned char *text, Py_ssize_t size, bint zero) except -1:
    """``2024-03-05 12:34:56`` and a fraction as ISO 8601, with six digits of it or none; 0 if it is something else.

    `zero`: a fraction of nothing but zeros is none.
    """
    cdef Py_ssize_t i, fraction = size - 20
    if size < 19 or size == 20 or size > 26 or text[10] != 32 or days(text) < 0 or seconds_of_day(text + 11) < 0:
        return 0
    if size > 20 and (text[19] != 46 or not are_digits(text + 20, fraction)):
        return 0
    if size > 20:
        for i in range(fraction):
            if text[20 + i] != 48:
                break
        else:
            if not zero:
                return 0
            size = 19
    room_for(out, 29)
    cdef unsigned char *to = out.start + out.size
    to[0] = 34
    memcpy(to + 1, text, size)
    to[11] = 84
    to += size + 1
    if size > 19:
        for i in range(26 - size):
            to[i] = 48
        to += 26 - size
    to[0] = 90
    to[1] = 34
    out.size = to + 2 - out.start
    return 1


cdef int known(Out *out, int code, const unsigned char *text, Py_ssize_t size) except -1:
    """A value of which `code` tells all; 0 if the encoder must be called. Sizes are compared before bytes are read."""
    cdef long long day
    cdef long clock
    if code == AS_IS:
        put(out, text, size)
        return 1
    if code == TEXT:
        escaped(out, text, size)
        return 1
    if code == QUOTED:
        room_for(out, size + 2)
        out.start[out.size] = 34
        memcpy(out.start + out.size + 1, text, size)
        out.start[out.size + size + 1] = 34
        out.size += size + 2
        return 1
    if code == T_OR_F or code == ONE_OR_ZERO:
        if size != 1:
            return 0
        if text[0] == (116 if code == T_OR_F else 49):
            put(out, b"true", 4)
            return 1
        if text[0] == (102 if code == T_OR_F else 48):
            put(out, b"false", 5)
            return 1
        return 0
    if code == MICROS or code == MILLIS:
        if size < 19 or text[10] != 32:
            return 0
        day, clock = days(text), seconds_of_day(text + 11)
        if day < 0 or clock < 0 or day + clock == 0:
            return 0
        return with_fraction(out, day * 86400 + clock, text + 19, size - 19, 6 if code == MICROS else 3)
    if code == WITH_ZONE:
        if size < 22 or memcmp(text + size - 3, b"+00", 3) != 0:
            return 0
        return instant(out, text, size - 3, False)
    if code == INSTANT:
        return instant(out, text, size, True)
    if code == DAYS:
        day = days(text) if size == 10 else -1
        if day < 0:
            return 0
        put_number(out, day)
        return 1
    if code == CLOCK:
        clock = seconds_of_day(text) if size >= 8 else -1
        return with_fraction(out, clock, text + 8, size - 8, 6) if clock > 0 else 0
    if code == FLOATING or code == DOUBLE:
        if size == 0 or text[size - 1] > 57 or (size == 2 and text[0] == 45 and text[1] == 48):
            return 0
        put(out, text, size)
        return 1
    return 0


cdef inline int put_value(Out *out, int code, object value, object encode) except -1:
    if PyBytes_CheckExact(value) and code != CALLED:
        if known(out, code, <const unsigned char *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)):
            return 0
    cdef object json = encode(value)
    if not PyBytes_CheckExact(json):
        raise TypeError
    return put_bytes(out, json)


cdef class _Columns:
    """What stands before each value, and how it is written."""

    cdef list befores, encoders
    cdef Py_ssize_t count
    cdef unsigned char *codes

    def __cinit__(self, columns, *_):
        self.befores = [before for before, _ in columns]
        if not all(type(before) is bytes and before for before in self.befores):
            raise ValueError("a column without what stands before it")
        self.encoders = [encode for _, encode in columns]
        self.count = len(self.befores)
        self.codes = <unsigned char *>malloc(self.count + 1)
        if self.codes == NULL:
            raise MemoryError
        for i, encode in enumerate(self.encoders):
            self.codes[i] = _CODES.get(json_text.FORMS.get(encode), CALLED)

    def __dealloc__(self):
        free(self.codes)

    def __call__(self, row):
        cdef Out out
        take(&out)
        try:
            self.write(&out, row if type(row) is tuple else tuple(row))
            return PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)

    cdef int write(self, Out *out, tuple row) except -1:
        raise NotImplementedError


@cython.final
cdef class RowWriter(_Columns):
    """`rowcode.row_writer`."""

    @cython.boundscheck(False)  # i is below count: the size of all three lists, which never change, and of the row
    @cython.wraparound(False)
    cdef int write(self, Out *out, tuple row) except -1:
        cdef Py_ssize_t i
        cdef object value
        if len(row) != self.count:
            raise ValueError("a row of another number of columns")
        for i in range(self.count):
            put_bytes(out, self.befores[i])
            value = row[i]
            if value is None:
                put(out, b"null", 4)
            else:
                put_value(out, self.codes[i], value, self.encoders[i])
        return put(out, b"}", 1)

    @cython.boundscheck(False)  # as `write`
    @cython.wraparound(False)
    cdef int image(self, Out *out, tuple row) except -1:
        """What was sent of a row; columns that were not are left out."""
        cdef Py_ssize_t i
        cdef object value, before
        cdef bint first = True
        if len(row) != self.count:
            raise ValueError("a row of another number of columns")
        for i in range(self.count):
            value = row[i]
            if value is UNCHANGED:
                continue
            before = self.befores[i]
            put(out, b"{" if first else b",", 1)
            put(out, PyBytes_AS_STRING(before) + 1, PyBytes_GET_SIZE(before) - 1)  # it is not empty: see `_Columns`
            first = False
            if value is None:
                put(out, b"null", 4)
            else:
                put_value(out, self.codes[i], value, self.encoders[i])
        return put(out, b"{}" if first else b"}", 2 if first else 1)


@cython.final
cdef class KeyWriter(_Columns):
    """`rowcode.key_writer`."""

    cdef tuple indexes
    cdef bytes end

    def __init__(self, columns, indexes, bytes end not None=b"}"):
        self.indexes, self.end = tuple(indexes), end
        if len(self.indexes) != self.count or any(index < 0 for index in self.indexes):
            raise ValueError("a key of another number of columns")

    @cython.boundscheck(False)  # i is below count, the size of both lists and of `indexes`; each index is compared
    @cython.wraparound(False)
    cdef int write(self, Out *out, tuple row) except -1:
        cdef Py_ssize_t i, index
        cdef object value
        for i in range(self.count):
            index = self.indexes[i]
            if index >= len(row):
                raise IndexError
            value = row[index]
            if value is None or value is UNCHANGED:
                raise TypeError
            put_bytes(out, self.befores[i])
            put_value(out, self.codes[i], value, self.encoders[i])
        return put_bytes(out, self.end)


cdef class SizeBound:
    """`rowcode.size_bound`."""

    cdef long long least
    cdef list factors

    def __init__(self, least, factors):
        self.least = least
        self.factors = list(factors.items())

    def __call__(self, row):
        return self.of(row)

    cdef long long of(self, tuple row) except -1:
        cdef long long size = self.least, by
        cdef Py_ssize_t index
        cdef object value
        for index, by in self.factors:
            value = row[index]
            if value is None:
                continue
            if not PyBytes_CheckExact(value):
                raise TypeError
            size += PyBytes_GET_SIZE(value) * by
        return size


# ---- Avro and Protobuf: values without JSON between ----

cdef enum:
    A_CALLED, A_WHOLE, A_RAW, A_TEXT, A_T_OR_F, A_ONE_OR_ZERO, A_FLOAT, A_DOUBLE, A_MICROS, A_MILLIS, A_WITH_ZONE, A_INSTANT
    A_DAYS, A_CLOCK, A_DECIMAL, A_HEX

cdef dict _PACKED_CODES = {
    "whole": A_WHOLE, "raw": A_RAW, "text": A_TEXT, "t_or_f": A_T_OR_F, "one_or_zero": A_ONE_OR_ZERO, "float": A_FLOAT,
    "double": A_DOUBLE, "micros": A_MICROS, "millis": A_MILLIS, "with_zone": A_WITH_ZONE, "instant": A_INSTANT,
    "days": A_DAYS, "clock": A_CLOCK, "decimal": A_DECIMAL, "hex": A_HEX,
}

cdef enum:
    DIGITS_KEPT = 18  # of which a number always has room in 64 bits
    LONG_MAX = 10  # bytes of a number of 64 bits


cdef inline int put_long(Out *out, long long number) except -1:
    """Zig-zag, seven bits a byte."""
    cdef unsigned long long left = (<unsigned long long>number << 1) ^ <unsigned long long>(number >> 63)
    cdef unsigned char *to
    room_for(out, LONG_MAX)
    to = out.start + out.size
    while left > 0x7F:
        to[0] = <unsigned char>(left & 0x7F) | 0x80
        to += 1
        left >>= 7
    to[0] = <unsigned char>left
    out.size = to + 1 - out.start
    return 0


cdef inline int put_unsigned(Out *out, unsigned long long left) except -1:
    """Seven bits a byte."""
    cdef unsigned char *to
    room_for(out, LONG_MAX)
    to = out.start + out.size
    while left > 0x7F:
        to[0] = <unsigned char>(left & 0x7F) | 0x80
        to += 1
        left >>= 7
    to[0] = <unsigned char>left
    out.size = to + 1 - out.start
    return 0


cdef inline int put_whole(Out *out, long long number, bint protobuf) except -1:
    return put_unsigned(out, <unsigned long long>number) if protobuf else put_long(out, number)


cdef inline size_t begin_sized(Out *out, size_t guess) except? 0:
    """Leave so many bytes for a size, and say where."""
    room_for(out, guess)
    out.size += guess
    return out.size - guess


cdef inline int end_sized(Out *out, size_t begin, unsigned char *guess) except -1:
    """Put the size of what was written since before it, and guess better next time if so many bytes were not right."""
    cdef size_t size = out.size - begin - guess[0], left = size >> 7
    cdef unsigned char needs = 1, i
    cdef unsigned char *to
    while left:
        left >>= 7
        needs += 1
    if needs != guess[0]:
        room_for(out, needs)
        memmove(out.start + begin + needs, out.start + begin + guess[0], size)
        guess[0] = needs
    to = out.start + begin  # written in place: to grow keeps what lies below `out.size` alone
    left = size
    for i in range(needs):
        to[i] = <unsigned char>(left & 0x7F) | (0x80 if i < needs - 1 else 0)
        left >>= 7
    out.size = begin + needs + size
    return 0


cdef inline int put_byte(Out *out, unsigned char byte) except -1:
    room_for(out, 1)
    out.start[out.size] = byte
    out.size += 1
    return 0


cdef inline int put_sized(Out *out, const void *text, Py_ssize_t size, bint protobuf=False) except -1:
    put_whole(out, size, protobuf)
    return put(out, text, size)


cdef inline bint whole(const unsigned char *text, Py_ssize_t size, long long *number) noexcept:
    """Whether it is a whole number of so few digits that they have room; which."""
    cdef bint minus = size > 0 and text[0] == 45
    cdef Py_ssize_t i
    cdef long long found = 0
    if minus:
        text += 1
        size -= 1
    if size < 1 or size > DIGITS_KEPT or not are_digits(text, size):
        return False
    for i in range(size):
        found = found * 10 + (text[i] - 48)
    number[0] = -found if minus else found
    return True


cdef inline bint scaled(
    long long seconds, const unsigned char *text, Py_ssize_t size, int digits, long long *number
) noexcept:
    """`with_fraction` as a number."""
    cdef int i
    if size == 1 or size > digits + 1 or (size and text[0] != 46) or not are_digits(text + 1, size - 1):
        return False
    for i in range(digits):
        seconds = seconds * 10 + (text[i + 1] - 48 if i + 1 < size else 0)
    number[0] = seconds
    return True


cdef inline int put_decimal(Out *out, const unsigned char *text, Py_ssize_t size, int scale, bytes end) except -1:
    """The unscaled number, the highest byte first; 0 for another scale, more digits, and what is no number.

    `end`: what stands behind it in a message of Protobuf; None: in Avro.
    """
    cdef bint minus = size > 0 and text[0] == 45
    cdef Py_ssize_t i, digits = 0, point = -1
    cdef long long number = 0
    cdef int bytes_ = 1
    cdef unsigned char *to
    for i in range(1 if minus else 0, size):
        if text[i] == 46 and point < 0:
            point = i
        elif 48 <= text[i] <= 57 and digits < DIGITS_KEPT:
            number = number * 10 + (text[i] - 48)
            digits += 1
        else:
            return 0
    if digits == 0 or (scale == 0 and point >= 0) or (scale > 0 and (point < 0 or size - point - 1 != scale)):
        return 0
    if minus:
        number = -number
    while bytes_ < 8 and not (-(<long long>1 << (8 * bytes_ - 1)) <= number < (<long long>1 << (8 * bytes_ - 1))):
        bytes_ += 1
    if end is None:
        put_long(out, bytes_)
    else:
        put_unsigned(out, 2 + bytes_ + PyBytes_GET_SIZE(end))
        put_byte(out, 0x0A)
        put_byte(out, <unsigned char>bytes_)
    room_for(out, 8)
    to = out.start + out.size
    for i in range(bytes_):
        to[i] = <unsigned char>((<unsigned long long>number >> (8 * (bytes_ - 1 - i))) & 0xFF)
    out.size += bytes_
    if end is not None:
        put_bytes(out, end)
    return 1


cdef inline int nibble(unsigned char c) noexcept:
    if 48 <= c <= 57:
        return c - 48
    return c - 87 if 97 <= c <= 102 else -1


cdef int put_hex_bytes(Out *out, const unsigned char *text, Py_ssize_t size, bint protobuf) except -1:
    """The bytes of ``\\x`` and hex digits; 0 for anything else."""
    cdef Py_ssize_t i, count = (size - 2) // 2
    cdef int high, low
    cdef unsigned char *to
    cdef size_t begin = out.size
    if size < 2 or size % 2 or text[0] != 92 or text[1] != 120:
        return 0
    put_whole(out, count, protobuf)
    room_for(out, count)
    to = out.start + out.size
    for i in range(count):
        high, low = nibble(text[2 + 2 * i]), nibble(text[3 + 2 * i])
        if high < 0 or low < 0:
            out.size = begin
            return 0
        to[i] = <unsigned char>(high << 4 | low)
    out.size += count
    return 1


cdef int unquoted(Out *out, size_t begin, bint protobuf) except -1:
    """Make a sized string of one that was written as JSON from `begin` on: of fewer than 64 bytes, without escapes."""
    cdef size_t size = out.size - begin - 2
    out.start[begin] = <unsigned char>(size if protobuf else size << 1)
    out.size -= 1
    return 1


cdef int packed_known(Out *out, int code, int scale, bytes end, bint protobuf, object value) except -1:
    """As `known`, in Avro or Protobuf."""
    cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(value)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
    cdef long long number = 0, day
    cdef long clock
    cdef size_t begin = out.size
    cdef double real
    cdef float real32
    if code == A_TEXT:
        if cdc_seen(text, size) & 0x80:
            PyUnicode_DecodeUTF8(<const char *>text, size, NULL)
        put_sized(out, text, size, protobuf)
        return 1
    if code == A_RAW:
        put_sized(out, text, size, protobuf)
        return 1
    if code == A_WHOLE:
        if not whole(text, size, &number):
            return 0
        put_whole(out, number, protobuf)
        return 1
    if code == A_DECIMAL:
        return put_decimal(out, text, size, scale, end)
    if code == A_MICROS or code == A_MILLIS:
        if size < 19 or text[10] != 32:
            return 0
        day, clock = days(text), seconds_of_day(text + 11)
        if day < 0 or clock < 0 or day + clock == 0:
            return 0
        if not scaled(day * 86400 + clock, text + 19, size - 19, 6 if code == A_MICROS else 3, &number):
            return 0
        put_whole(out, number, protobuf)
        return 1
    if code == A_WITH_ZONE:
        if size < 22 or memcmp(text + size - 3, b"+00", 3) != 0 or not instant(out, text, size - 3, False):
            return 0
        return unquoted(out, begin, protobuf)
    if code == A_INSTANT:
        return unquoted(out, begin, protobuf) if instant(out, text, size, True) else 0
    if code == A_DAYS:
        day = days(text) if size == 10 else -1
        if day < 0:
            return 0
        put_whole(out, day, protobuf)
        return 1
    if code == A_CLOCK:
        clock = seconds_of_day(text) if size >= 8 else -1
        if clock <= 0 or not scaled(clock, text + 8, size - 8, 6, &number):
            return 0
        put_whole(out, number, protobuf)
        return 1
    if code == A_T_OR_F or code == A_ONE_OR_ZERO:
        if size != 1:
            return 0
        if text[0] == (116 if code == A_T_OR_F else 49):
            put_byte(out, 1)
            return 1
        if text[0] == (102 if code == A_T_OR_F else 48):
            put_byte(out, 0)
            return 1
        return 0
    if code == A_DOUBLE or code == A_FLOAT:
        if size == 0 or text[size - 1] > 57:
            return 0
        real = PyOS_string_to_double(<const char *>text, NULL, NULL)
        if code == A_DOUBLE:
            put(out, &real, sizeof(double))
        else:
            real32 = <float>real
            put(out, &real32, sizeof(float))
        return 1
    if code == A_HEX:
        return put_hex_bytes(out, text, size, protobuf)
    return 0


@cython.final
cdef class AvroColumns:
    """Writes a row's columns in Avro, each of which may be null; or those of a key, which are not."""

    cdef list packs
    cdef Py_ssize_t count
    cdef unsigned char *codes
    cdef int *scales
    cdef tuple indexes

    def __cinit__(self, columns, indexes=None):
        """`columns`: of each the code, the scale, and what packs a value that the code does not tell."""
        self.packs = [pack for _, _, pack in columns]
        self.count = len(self.packs)
        self.codes = <unsigned char *>malloc(self.count + 1)
        self.scales = <int *>malloc((self.count + 1) * sizeof(int))
        if self.codes == NULL or self.scales == NULL:
            raise MemoryError
        for i, (code, scale, _) in enumerate(columns):
            self.codes[i] = _PACKED_CODES.get(code, A_CALLED)
            self.scales[i] = scale
        self.indexes = None if indexes is None else tuple(indexes)
        if self.indexes is not None and (len(self.indexes) != self.count or any(index < 0 for index in self.indexes)):
            raise ValueError("a key of another number of columns")

    def __dealloc__(self):
        free(self.codes)
        free(self.scales)

    def __call__(self, tuple row not None):
        cdef Out out
        take(&out)
        try:
            if self.indexes is None:
                self.write(&out, row, False)
            else:
                self.key(&out, row)
            return PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)

    cdef inline int value(self, Out *out, Py_ssize_t i, object value) except -1:
        if PyBytes_CheckExact(value) and self.codes[i] != A_CALLED:
            if packed_known(out, self.codes[i], self.scales[i], None, False, value):
                return 0
        packed = self.packs[i](value)
        if not PyBytes_CheckExact(packed):
            raise TypeError
        return put_bytes(out, packed)

    cdef int write(self, Out *out, tuple row, bint image) except -1:
        """All columns; of an image those that were not sent are null."""
        cdef Py_ssize_t i
        cdef object value
        if len(row) != self.count:
            raise ValueError("a row of another number of columns")
        for i in range(self.count):
            value = row[i]
            if value is None or (image and value is UNCHANGED):
                put_byte(out, 0)
                continue
            put_byte(out, 2)
            self.value(out, i, value)
        return 0

    cdef int key(self, Out *out, tuple row) except -1:
        cdef Py_ssize_t i
        cdef object value
        for i in range(self.count):
            value = row[self.indexes[i]]
            if value is None or value is UNCHANGED:
                raise TypeError
            self.value(out, i, value)
        return 0


cdef class AvroTable:
    """What a table's records are in Avro."""

    cdef bytes key_head, value_head
    cdef AvroColumns key, row
    cdef bint placed

    def __init__(self, bytes key_head not None, bytes value_head not None, AvroColumns key not None, AvroColumns row not None, bint placed):
        self.key_head, self.value_head, self.key, self.row, self.placed = key_head, value_head, key, row, placed


cdef enum:
    TAG_MAX = 7

cdef struct Tag:
    unsigned char size
    unsigned char text[TAG_MAX]


@cython.final
cdef class ProtobufColumns:
    """Writes a row's columns in Protobuf, without those that are null; or those of a key, which are not."""

    cdef list ends, packs
    cdef Py_ssize_t count
    cdef Tag *tags
    cdef unsigned char *codes
    cdef int *scales
    cdef tuple indexes

    def __cinit__(self, columns, indexes=None):
        """`columns`: of each what stands before a value, the code, the scale, what stands behind a decimal's digits,
        and what packs a value that the code does not tell, with what stands before it.
        """
        self.ends = [end for _, _, _, end, _ in columns]
        self.packs = [pack for *_, pack in columns]
        if not all(type(before) is bytes and 0 < len(before) <= TAG_MAX for before, *_ in columns):
            raise ValueError("what stands before a value is a tag")
        if not all(type(end) is bytes for end in self.ends):
            raise TypeError("what stands behind a value is bytes")
        self.count = len(self.packs)
        self.tags = <Tag *>calloc(self.count + 1, sizeof(Tag))
        self.codes = <unsigned char *>malloc(self.count + 1)
        self.scales = <int *>malloc((self.count + 1) * sizeof(int))
        if self.tags == NULL or self.codes == NULL or self.scales == NULL:
            raise MemoryError
        for i, (before, code, scale, *_) in enumerate(columns):
            self.tags[i].size = len(before)
            memcpy(self.tags[i].text, PyBytes_AS_STRING(before), len(before))
            self.codes[i] = _PACKED_CODES.get(code, A_CALLED)
            self.scales[i] = scale
        self.indexes = None if indexes is None else tuple(indexes)
        if self.indexes is not None and (len(self.indexes) != self.count or any(index < 0 for index in self.indexes)):
            raise ValueError("a key of another number of columns")

    def __dealloc__(self):
        free(self.tags)
        free(self.codes)
        free(self.scales)

    def __call__(self, tuple row not None):
        cdef Out out
        take(&out)
        try:
            if self.indexes is None:
                self.write(&out, row, False)
            else:
                self.key(&out, row)
            return PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)

    @cython.boundscheck(False)  # i is below count, the size of all lists, which never change
    @cython.wraparound(False)
    cdef inline int value(self, Out *out, Py_ssize_t i, object value) except -1:
        cdef size_t begin = out.size
        cdef int code = self.codes[i]
        if PyBytes_CheckExact(value) and code != A_CALLED:
            room_for(out, TAG_MAX)
            memcpy(out.start + out.size, self.tags[i].text, TAG_MAX)
            out.size += self.tags[i].size
            if packed_known(out, code, self.scales[i], self.ends[i] if code == A_DECIMAL else None, True, value):
                return 0
            out.size = begin
        packed = self.packs[i](value)
        if not PyBytes_CheckExact(packed):
            raise TypeError
        return put_bytes(out, packed)

    @cython.boundscheck(False)  # i is below count: the size of all lists and of the row
    @cython.wraparound(False)
    cdef int write(self, Out *out, tuple row, bint image) except -1:
        """All columns that are not null; of an image those that were sent."""
        cdef Py_ssize_t i
        cdef object value
        if len(row) != self.count:
            raise ValueError("a row of another number of columns")
        for i in range(self.count):
            value = row[i]
            if value is None or (image and value is UNCHANGED):
                continue
            self.value(out, i, value)
        return 0

    cdef int key(self, Out *out, tuple row) except -1:
        """All columns; one that is 0 or empty is left out, and so is written by what packs it."""
        cdef Py_ssize_t i, size
        cdef object value, packed
        cdef const unsigned char *text
        for i in range(self.count):
            value = row[self.indexes[i]]
            if value is None or value is UNCHANGED:
                raise TypeError
            if PyBytes_CheckExact(value):
                size, text = PyBytes_GET_SIZE(value), <const unsigned char *>PyBytes_AS_STRING(value)
                if 0 < size and (self.codes[i] == A_TEXT or self.codes[i] == A_RAW or (
                    self.codes[i] == A_WHOLE and (text[0] > 48 or (size > 1 and text[0] == 45 and text[1] > 48))
                )):
                    self.value(out, i, value)
                    continue
            packed = self.packs[i](value)
            if not PyBytes_CheckExact(packed):
                raise TypeError
            put_bytes(out, packed)
        return 0


cdef class ProtobufTable:
    """What a table's records are in Protobuf."""

    cdef bytes key_head, value_head
    cdef ProtobufColumns key, row
    cdef dict metadata
    cdef int place
    cdef unsigned char of_before, of_after, of_source, of_transaction
    """How many bytes the sizes of these took last."""

    def __init__(
        self, bytes key_head not None, bytes value_head not None, ProtobufColumns key not None,
        ProtobufColumns row not None, dict metadata not None, int place,
    ):
        """`metadata`: what stands before each in a flat row. `place`: the number of a place's first member; 0: none."""
        if place > 12:
            raise ValueError("a place whose numbers take more than a byte")
        self.key_head, self.value_head, self.key, self.row, self.metadata = key_head, value_head, key, row, metadata
        self.place = place
        self.of_before = self.of_after = self.of_source = self.of_transaction = 1


cdef class Around:
    """What stands around the JSON of a value."""

    cdef bytes begin, end

    def __init__(self, bytes begin not None, bytes end not None):
        self.begin, self.end = begin, end


# ---- events ----

cdef class Shape:
    """The parts of an event that depend on its table's version alone: literally, without a format's escapes."""

    cdef bytes head, where, tail
    cdef str topic, name
    cdef unsigned long long of
    """The frame that `count` is of, by its serial."""
    cdef _Count count
    cdef long long made[8]
    """How many events were made since `taken`, by the last three bits of the op, which r, c, d and u differ in."""

    def __init__(self, head, where, tail, topic, name):
        self.head, self.where, self.tail, self.topic, self.name = head, where, tail, topic, name

    def taken(self):
        """Return how many events of each op (r, c, d, u; a message counts as u) were made since the last call."""
        found = self.made[2], self.made[3], self.made[4], self.made[5]
        self.made[2] = self.made[3] = self.made[4] = self.made[5] = 0
        return found


cdef class _Count:
    cdef str name
    cdef unsigned long long events


cdef enum:
    ROOM_OF_FRAME = 512
    POSITION_AT = 13  # behind the place, where the position begins
    TIME_AT = 10  # behind the operation, where the time begins

cdef unsigned long long _serial = 0


cdef class Frame:
    """`envelope.PlainFrame`. What its events share is put together once, in pieces between which the numbers go."""

    cdef readonly unsigned long long events
    cdef bint numbered
    cdef unsigned long long view
    cdef Out out
    cdef size_t ends[6]
    """Of: time and mark · until the first number of the place · until the second · position · id · what is behind op."""
    cdef int places
    cdef dict counted
    cdef unsigned long long serial
    """No other beginning has it: a table's shape keeps the count of the one that it was used in last."""
    cdef long long at_ms, made_at_ms
    cdef bytes where, marked
    cdef str name
    cdef Out avro
    cdef size_t avro_ends[6]
    """Of: time and mark · until the first number of the place · until the second · place · id · time of the event."""
    cdef unsigned long long avro_of
    """The serial that `avro` was put together for."""
    cdef Out protobuf
    cdef size_t protobuf_ends[6]
    """As `avro_ends`."""
    cdef unsigned long long protobuf_of

    def __cinit__(self):
        self.out.start = <unsigned char *>malloc(ROOM_OF_FRAME)
        self.avro.start = <unsigned char *>malloc(ROOM_OF_FRAME)
        self.protobuf.start = <unsigned char *>malloc(ROOM_OF_FRAME)
        if self.out.start == NULL or self.avro.start == NULL or self.protobuf.start == NULL:
            raise MemoryError
        self.out.room = self.avro.room = self.protobuf.room = ROOM_OF_FRAME

    def __init__(
        self, *, epoch, commit, at_ms, made_at_ms, transaction, bytes where, view=0, str snapshot="true", bint alone=False
    ):
        cdef bytes marked = snapshot.encode() if transaction is None and not alone else b"false"
        cdef str name = None if transaction is None else transaction[0]
        self.begin(at_ms, name, where, view, marked)
        put_bytes(&self.out, b"%08x.%016x." % (epoch, commit))
        self.end(name, made_at_ms)

    cdef int begin(self, long long at_ms, str name, bytes where, unsigned long long view, bytes marked) except -1:
        """Of a transaction called `name`; None: of rows that were read, or of a message.

        What the position begins with is to be put behind it, then `end`.
        """
        global _serial
        cdef Py_ssize_t i = 0, size = PyBytes_GET_SIZE(where)
        cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(where)
        cdef Out *out = &self.out
        _serial += 1
        self.serial, self.events, self.view, self.numbered = _serial, 0, view, name is not None
        self.counted = {}
        self.at_ms, self.where, self.marked, self.name = at_ms, where, marked, name
        out.size = 0
        put_signed(out, at_ms)
        put(out, b',"snapshot":"', 13)
        put_bytes(out, marked)
        put(out, b'"', 1)
        self.ends[0] = out.size
        self.places = 0
        room_for(out, size)
        while i < size:
            if text[i] != 37:  # %
                out.start[out.size] = text[i]
                out.size += 1
                i += 1
                continue
            if i + 1 < size and text[i + 1] == 37:
                out.start[out.size] = 37
                out.size += 1
            elif i + 1 < size and text[i + 1] == 100 and self.places < 2:  # d
                self.places += 1
                self.ends[self.places] = out.size
            else:
                raise ValueError("a place is not of one or two numbers")
            i += 2
        if self.places == 0:
            raise ValueError("a place is not of one or two numbers")
        if self.places == 1:
            self.ends[2] = out.size
        return put(out, b',"position":"', POSITION_AT)

    cdef int end(self, str name, long long made_at_ms) except -1:
        cdef Py_ssize_t size
        cdef const char *called
        cdef Out *out = &self.out
        self.ends[3] = out.size
        self.made_at_ms = made_at_ms
        if self.numbered:
            put(out, b'{"id":', 6)
            called = PyUnicode_AsUTF8AndSize(name, &size)
            escaped(out, <const unsigned char *>called, size)
            put(out, b',"total_order":', 15)
        else:
            put(out, b"null", 4)
        self.ends[4] = out.size
        put(out, b'","ts_ms":', 10)
        put_signed(out, made_at_ms)
        put(out, b"}", 1)
        self.ends[5] = out.size
        return 0

    def __dealloc__(self):
        free(self.out.start)
        free(self.avro.start)
        free(self.protobuf.start)

    cdef int in_avro(self, bint placed) except -1:
        """Put together in Avro what the events share: the members of `where` are fields that may be null, in its order."""
        cdef Out *out = &self.avro
        self.avro_of, out.size = 0, 0
        put_long(out, self.at_ms)
        put_sized(out, PyBytes_AS_STRING(self.marked), PyBytes_GET_SIZE(self.marked))
        self.avro_ends[0] = out.size
        if placed:
            self.place(out, self.avro_ends, -1)
        else:
            self.avro_ends[1] = self.avro_ends[2] = self.avro_ends[3] = out.size
        if self.name is None:
            put_byte(out, 0)
        else:
            put_byte(out, 2)
            told = self.name.encode()
            put_sized(out, PyBytes_AS_STRING(told), PyBytes_GET_SIZE(told))
        self.avro_ends[4] = out.size
        put_byte(out, 2)
        put_long(out, self.made_at_ms)
        self.avro_ends[5] = out.size
        self.avro_of = self.serial
        return 0

    cdef int in_protobuf(self, int number) except -1:
        """The same in Protobuf; the first member of `where` has this number, and the others those behind it."""
        cdef Out *out = &self.protobuf
        cdef bytes told
        self.protobuf_of, out.size = 0, 0
        if self.at_ms:
            put_byte(out, 4 << 3)
            put_unsigned(out, <unsigned long long>self.at_ms)
        put_byte(out, 5 << 3 | 2)
        put_sized(out, PyBytes_AS_STRING(self.marked), PyBytes_GET_SIZE(self.marked), True)
        self.protobuf_ends[0] = out.size
        if number:
            self.place(out, self.protobuf_ends, number)
        else:
            self.protobuf_ends[1] = self.protobuf_ends[2] = self.protobuf_ends[3] = out.size
        if self.name:
            told = self.name.encode()
            put_byte(out, 1 << 3 | 2)
            put_sized(out, PyBytes_AS_STRING(told), PyBytes_GET_SIZE(told), True)
        self.protobuf_ends[4] = out.size
        put_byte(out, 6 << 3)
        put_unsigned(out, <unsigned long long>self.made_at_ms)
        self.protobuf_ends[5] = out.size
        self.protobuf_of = self.serial
        return 0

    cdef int place(self, Out *out, size_t *ends, int member) except -1:
        """The members of `where`, with their ends; `member` is the number of the first in Protobuf, or -1 in Avro."""
        cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(self.where)
        cdef Py_ssize_t i = 0, begin, size = PyBytes_GET_SIZE(self.where)
        cdef long long number = 0
        cdef int places = 0
        cdef bint plain, protobuf = member >= 0
        while i < size:
            while i < size and text[i] != 58:  # a name and its colon
                i += 1
            i += 1
            begin = i
            if i >= size:
                raise ValueError("a place without a value")
            if text[i] == 37 and i + 1 < size and text[i + 1] == 100:  # %d
                if places == 2:
                    raise ValueError("a place is not of one or two numbers")
                put_byte(out, <unsigned char>(member << 3) if protobuf else 2)
                places += 1
                ends[places] = out.size
                i += 2
            elif text[i] == 34:
                plain = True
                i += 1
                while i < size and text[i] != 34:
                    if text[i] == 92:
                        i += 1
                        plain = False
                    elif text[i] == 37:
                        plain = False
                    i += 1
                i += 1
                put_byte(out, <unsigned char>(member << 3 | 2) if protobuf else 2)
                if plain:
                    put_sized(out, text + begin + 1, i - begin - 2, protobuf)
                else:
                    told = loads(self.where[begin:i].replace(b"%%", b"%")).encode()
                    put_sized(out, PyBytes_AS_STRING(told), PyBytes_GET_SIZE(told), protobuf)
            else:
                while i < size and text[i] != 44:
                    i += 1
                if i - begin == 4 and memcmp(text + begin, b"null", 4) == 0:
                    if not protobuf:
                        put_byte(out, 0)
                elif whole(text + begin, i - begin, &number):
                    put_byte(out, <unsigned char>(member << 3) if protobuf else 2)
                    put_whole(out, number, protobuf)
                else:
                    raise ValueError("a place is not of one or two numbers")
            if i > size or (i < size and text[i] != 44):
                raise ValueError("a place is not a list of members")
            i += 1
            member += protobuf
        if places != self.places or member > 16:
            raise ValueError("a place of another kind")
        if places == 1:
            ends[2] = out.size
        ends[3] = out.size
        return 0

    cdef int behind_protobuf(self, Out *out, ProtobufEnd end, Shape shape, object lsn, bytes op) except -1:
        """`behind`, in Protobuf."""
        cdef long long first, second = 0
        cdef unsigned long long number = self.view
        cdef size_t at, begin, within
        cdef const unsigned char *mine
        cdef size_t *ends = self.protobuf_ends
        cdef _Count count = None
        if self.protobuf_of != self.serial:
            self.in_protobuf(end.table.place)
        mine = self.protobuf.start
        if type(lsn) is tuple:
            if self.places != 2 or len(<tuple>lsn) != 2:
                raise TypeError("a place of another kind")
            first, second = lsn
        else:
            if self.places != 1:
                raise TypeError("a place of another kind")
            first = lsn
        if self.numbered:
            count = shape.count if shape.of == self.serial else self.counter(shape)
            self.events += 1
            count.events += 1
            number = self.events
        shape.made[PyBytes_AS_STRING(op)[0] & 7] += 1
        put_byte(out, 3 << 3 | 2)
        begin = begin_sized(out, end.table.of_source)
        put_bytes(out, end.head)
        put(out, mine, ends[0])
        put_bytes(out, end.where)
        if end.table.place:
            put(out, mine + ends[0], ends[1] - ends[0])
            put_unsigned(out, <unsigned long long>first)
            if self.places == 2:
                put(out, mine + ends[1], ends[2] - ends[1])
                put_unsigned(out, <unsigned long long>second)
            put(out, mine + ends[2], ends[3] - ends[2])
        put(out, b"\x82\x01", 3)  # 16 << 3 | 2, and a byte
        within = out.size
        at = self.ends[2] + POSITION_AT
        put(out, self.out.start + at, self.ends[3] - at)
        put_hex(out, number, 8)
        out.start[within - 1] = <unsigned char>(out.size - within)  # it is shorter than 128 bytes
        put_bytes(out, end.version)
        end_sized(out, begin, &end.table.of_source)
        if self.numbered:
            put_byte(out, 4 << 3 | 2)
            begin = begin_sized(out, end.table.of_transaction)
            put(out, mine + ends[3], ends[4] - ends[3])
            put_byte(out, 2 << 3)
            put_unsigned(out, number)
            put_byte(out, 3 << 3)
            put_unsigned(out, count.events)
            end_sized(out, begin, &end.table.of_transaction)
        put_byte(out, 5 << 3 | 2)
        put_sized(out, PyBytes_AS_STRING(op), PyBytes_GET_SIZE(op), True)
        return put(out, mine + ends[4], ends[5] - ends[4])

    cdef int behind_avro(self, Out *out, AvroEnd end, Shape shape, object lsn, bytes op) except -1:
        """`behind`, in Avro."""
        cdef long long first, second = 0
        cdef unsigned long long number = self.view
        cdef size_t at, begin
        cdef const unsigned char *mine
        cdef size_t *ends = self.avro_ends
        cdef _Count count = None
        if self.avro_of != self.serial:
            self.in_avro(end.table.placed)
        mine = self.avro.start
        if type(lsn) is tuple:
            if self.places != 2 or len(<tuple>lsn) != 2:
                raise TypeError("a place of another kind")
            first, second = lsn
        else:
            if self.places != 1:
                raise TypeError("a place of another kind")
            first = lsn
        if self.numbered:
            count = shape.count if shape.of == self.serial else self.counter(shape)
            self.events += 1
            count.events += 1
            number = self.events
        shape.made[PyBytes_AS_STRING(op)[0] & 7] += 1
        put_bytes(out, end.head)
        put(out, mine, ends[0])
        put_bytes(out, end.where)
        if end.table.placed:
            put(out, mine + ends[0], ends[1] - ends[0])
            put_long(out, first)
            if self.places == 2:
                put(out, mine + ends[1], ends[2] - ends[1])
                put_long(out, second)
            put(out, mine + ends[2], ends[3] - ends[2])
        begin = out.size
        put_byte(out, 0)
        at = self.ends[2] + POSITION_AT
        put(out, self.out.start + at, self.ends[3] - at)
        put_hex(out, number, 8)
        out.start[begin] = <unsigned char>((out.size - begin - 1) << 1)  # it is shorter than 64 bytes
        put_bytes(out, end.version)
        put(out, mine + ends[3], ends[4] - ends[3])
        if self.numbered:
            put_long(out, number)
            put_long(out, count.events)
        put_sized(out, PyBytes_AS_STRING(op), PyBytes_GET_SIZE(op))
        return put(out, mine + ends[4], ends[5] - ends[4])

    cdef int behind(self, Out *out, Shape shape, object lsn, bytes op) except -1:
        """All of an event behind its two rows; counts it."""
        cdef unsigned long long first, second = 0, number
        cdef const unsigned char *mine = self.out.start
        cdef size_t *ends = self.ends
        cdef _Count count
        if type(lsn) is tuple:
            if self.places != 2 or len(<tuple>lsn) != 2:
                raise TypeError("a place of another kind")
            first, second = lsn
        else:
            if self.places != 1:
                raise TypeError("a place of another kind")
            first = lsn
        if self.numbered:
            count = shape.count if shape.of == self.serial else self.counter(shape)
            self.events += 1
            count.events += 1
            number = self.events
        else:
            number = self.view
        shape.made[PyBytes_AS_STRING(op)[0] & 7] += 1
        put_bytes(out, shape.head)
        put(out, mine, ends[0])
        put_bytes(out, shape.where)
        put(out, mine + ends[0], ends[1] - ends[0])
        put_number(out, first)
        put(out, mine + ends[1], ends[2] - ends[1])
        if self.places == 2:
            put_number(out, second)
        put(out, mine + ends[2], ends[3] - ends[2])
        put_hex(out, number, 8)
        put_bytes(out, shape.tail)
        put(out, mine + ends[3], ends[4] - ends[3])
        if self.numbered:
            put_number(out, number)
            put(out, b',"data_collection_order":', 25)
            put_number(out, count.events)
            put(out, b"}", 1)
        put(out, b',"op":"', 7)
        put_bytes(out, op)
        return put(out, mine + ends[4], ends[5] - ends[4])

    cdef int position(self, Out *out, Shape shape) except -1:
        """The position of a table's next event; counts it."""
        cdef unsigned long long number = self.view
        cdef size_t at = self.ends[2] + POSITION_AT
        cdef _Count count
        if self.numbered:
            count = shape.count if shape.of == self.serial else self.counter(shape)
            self.events += 1
            count.events += 1
            number = self.events
        put(out, self.out.start + at, self.ends[3] - at)
        return put_hex(out, number, 8)

    cdef int made_at(self, Out *out) except -1:
        """When its events were made, in milliseconds."""
        cdef size_t at = self.ends[4] + TIME_AT
        return put(out, self.out.start + at, self.ends[5] - at - 1)

    cdef _Count counter(self, Shape shape):
        cdef _Count count = self.counted.get(shape.topic)
        if count is None:
            count = _Count()
            count.name = shape.name
            self.counted[shape.topic] = count
        shape.of, shape.count = self.serial, count
        return count

    def event(self, encoder, bytes op, bytes before, bytes after, lsn):
        cdef Out out
        take(&out)
        try:
            put(&out, b'{"before":', 10)
            put_bytes(&out, before)
            put(&out, b',"after":', 9)
            put_bytes(&out, after)
            self.behind(&out, encoder.shape, lsn, op)
            return PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)

    def message(self, encoder, message):
        cdef Out out
        cdef bytes body = encoder.body(message)
        take(&out)
        try:
            put_bytes(&out, body)
            self.behind(&out, encoder.shape, message.lsn, b"m")
            return PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)

    def counts(self):
        cdef _Count count
        return sorted([(count.name, count.events) for count in self.counted.values() if count.events])

    def skip(self):
        if self.numbered:
            self.events += 1

    def next_position(self):
        cdef size_t at = self.ends[2] + POSITION_AT
        before = self.out.start[at : self.ends[3]].decode()
        return f"{before}{self.events + 1 if self.numbered else self.view:08x}"


cdef object _CHANGE = Change, _TRANSACTION = Transaction, _CREATE = Op.CREATE, _UPDATE = Op.UPDATE, _DELETE = Op.DELETE


cdef str _HEADER = "__cdc"


cdef bytes _sized_texts(texts):
    """These texts as Avro has them, one behind the other."""
    cdef Out out
    take(&out)
    try:
        for text in texts:
            told = text.encode()
            put_sized(&out, PyBytes_AS_STRING(told), PyBytes_GET_SIZE(told))
        return PyBytes_FromStringAndSize(<char *>out.start, out.size)
    finally:
        give(&out)


cdef class AvroEnd:
    """What an event of one version of a table has in Avro, besides what all events of its frame have."""

    cdef AvroTable table
    cdef bytes head, where, version

    def __init__(self, encoder):
        cdef Out out
        self.table = encoder.wire.compiled
        self.head, self.where = _sized_texts(encoder.told[0]), _sized_texts(encoder.told[1])
        take(&out)
        try:
            put_long(&out, encoder.version)
            self.version = PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)


cdef bytes _text_fields(texts):
    """Texts as fields of Protobuf, by their numbers; empty ones are left out."""
    cdef Out out
    cdef int number
    take(&out)
    try:
        for number, text in texts:
            told = text.encode()
            if told:
                put_byte(&out, <unsigned char>(number << 3 | 2))
                put_sized(&out, PyBytes_AS_STRING(told), PyBytes_GET_SIZE(told), True)
        return PyBytes_FromStringAndSize(<char *>out.start, out.size)
    finally:
        give(&out)


cdef class ProtobufEnd:
    """What an event of one version of a table has in Protobuf, besides what all events of its frame have."""

    cdef ProtobufTable table
    cdef bytes head, where, version

    def __init__(self, encoder):
        cdef Out out
        self.table = encoder.wire.compiled
        self.head = _text_fields(zip((1, 2, 3), encoder.told[0], strict=True))
        numbers = [6, 7, 8] if len(encoder.told[1]) == 3 else [6, 8]
        self.where = _text_fields(zip(numbers, encoder.told[1], strict=True))
        take(&out)
        try:
            put(&out, b"\x88\x01", 2)  # 17 << 3
            put_unsigned(&out, encoder.version)
            self.version = PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)


cdef class FlatEnd:
    """What makes a flat record of a row: `cdc.rules.flat.Flat`, and the table's version."""

    cdef tuple metadata
    cdef bytes version
    cdef Shape shape
    cdef bint avro
    cdef dict protobuf
    """What stands before each of the metadata in Protobuf."""

    def __init__(self, encoder):
        self.avro = encoder.wire is not None and type(encoder.wire.compiled) is AvroTable
        if encoder.wire is not None and type(encoder.wire.compiled) is ProtobufTable:
            self.protobuf = (<ProtobufTable>encoder.wire.compiled).metadata
        if not {"op", "position", "ts_ms", "deleted"}.issuperset(encoder.flat.metadata):
            raise ValueError("metadata that is not known")
        self.metadata, self.version, self.shape = encoder.flat.metadata, b" %d " % encoder.version, encoder.shape

    cdef tuple record(self, Out *out, Frame frame, bytes code, bytes key, bint gone, bytes end):
        """Key, value and headers; `out` has the row, behind which goes `end`."""
        cdef Out told
        cdef bytes header
        cdef size_t position
        cdef bint packed
        self.shape.made[PyBytes_AS_STRING(code)[0] & 7] += 1
        take(&told)
        try:
            frame.position(&told, self.shape)
            position = told.size
            if (self.avro or self.protobuf is not None) and not gone:
                packed = self.protobuf is not None
                for name in self.metadata:
                    if packed:
                        put_bytes(out, self.protobuf[name])
                    else:
                        put_byte(out, 2)
                    if name == "op":
                        put_sized(out, PyBytes_AS_STRING(code), PyBytes_GET_SIZE(code), packed)
                    elif name == "position":
                        put_sized(out, told.start, position, packed)
                    elif name == "ts_ms":
                        put_whole(out, frame.made_at_ms, packed)
                    else:
                        put_sized(out, b"false", 5, packed)
            elif self.metadata and not gone:
                out.size -= 1  # the brace, which RowWriter puts last
                for name in self.metadata:
                    if name == "op":
                        put(out, b',"__op":"', 9)
                        put_bytes(out, code)
                        put(out, b'"', 1)
                    elif name == "position":
                        put(out, b',"__position":"', 15)
                        put(out, told.start, position)
                        put(out, b'"', 1)
                    elif name == "ts_ms":
                        put(out, b',"__ts_ms":', 11)
                        frame.made_at(out)
                    else:
                        put(out, b',"__deleted":"false"', 20)
                put(out, b"}", 1)
            put_bytes(&told, self.version)
            put_bytes(&told, code)
            header = PyBytes_FromStringAndSize(<char *>told.start, told.size)
        finally:
            give(&told)
        if gone:
            return key, None, ((_HEADER, header),)
        put_bytes(out, end)
        return key, PyBytes_FromStringAndSize(<char *>out.start, out.size), ((_HEADER, header),)


cdef class _Records:
    """What a fast path knows of one version of a table."""

    cdef RowWriter write_row
    cdef KeyWriter write_key
    cdef Shape shape
    cdef FlatEnd flat
    cdef AvroEnd avro
    cdef ProtobufEnd protobuf
    cdef bytes begin, end
    """What stands around the JSON of a value."""

    def __init__(self, encoder, *_):
        wire = encoder.wire
        self.shape = encoder.shape
        self.flat = None if encoder.flat is None else FlatEnd(encoder)
        self.begin = self.end = b""
        if wire is not None and type(wire.compiled) is AvroTable:
            self.avro = AvroEnd(encoder)
            return
        if wire is not None and type(wire.compiled) is ProtobufTable:
            self.protobuf = ProtobufEnd(encoder)
            return
        self.write_row, self.write_key = encoder.write_row, encoder.write_key
        if wire is not None:
            self.begin, self.end = (<Around?>wire.compiled).begin, (<Around>wire.compiled).end

    cdef int key(self, Out *out, tuple row) except -1:
        if self.protobuf is not None:
            put_bytes(out, self.protobuf.table.key_head)
            return self.protobuf.table.key.key(out, row)
        if self.avro is None:
            return self.write_key.write(out, row)
        put_bytes(out, self.avro.table.key_head)
        return self.avro.table.key.key(out, row)

    cdef int images(self, Out *out, object before, object after) except -1:
        """The event up to where the rows end, of a flat one the row."""
        cdef size_t begin
        if self.protobuf is not None:
            put_bytes(out, self.protobuf.table.value_head)
            if self.flat is not None:
                return 0 if after is None else self.protobuf.table.row.write(out, after, False)
            if before is not None:
                put_byte(out, 1 << 3 | 2)
                begin = begin_sized(out, self.protobuf.table.of_before)
                self.protobuf.table.row.write(out, before, True)
                end_sized(out, begin, &self.protobuf.table.of_before)
            if after is not None:
                put_byte(out, 2 << 3 | 2)
                begin = begin_sized(out, self.protobuf.table.of_after)
                self.protobuf.table.row.write(out, after, False)
                end_sized(out, begin, &self.protobuf.table.of_after)
            return 0
        if self.avro is None:
            put_bytes(out, self.begin)
            if self.flat is None:
                put(out, b'{"before":', 10)
                if before is None:
                    put(out, b"null", 4)
                else:
                    self.write_row.image(out, before)
                put(out, b',"after":', 9)
                if after is None:
                    return put(out, b"null", 4)
            return 0 if after is None else self.write_row.write(out, after)
        put_bytes(out, self.avro.table.value_head)
        if self.flat is None:
            put_byte(out, 0 if before is None else 2)
            if before is not None:
                self.avro.table.row.write(out, before, True)
            put_byte(out, 0 if after is None else 2)
        return 0 if after is None else self.avro.table.row.write(out, after, False)

    cdef int behind(self, Out *out, Frame frame, object lsn, bytes code) except -1:
        """The event behind its rows."""
        if self.protobuf is not None:
            return frame.behind_protobuf(out, self.protobuf, self.shape, lsn, code)
        if self.avro is None:
            frame.behind(out, self.shape, lsn, code)
            return put_bytes(out, self.end)
        return frame.behind_avro(out, self.avro, self.shape, lsn, code)


@cython.final
cdef class Way(_Records):
    """The compiled form of `cdc.encode.fast_path.fast_path`."""

    cdef object stored
    cdef long long limit

    def __init__(self, encoder, stored, limit):
        _Records.__init__(self, encoder)
        self.stored, self.limit = stored, limit

    def __call__(self, change, Frame frame not None):
        return self.record(change, frame) if type(change) is _CHANGE else None

    cdef tuple record(self, change, Frame frame):
        """Key and value, or None. `change` is a Change: its five items are taken without a look at its size."""
        cdef Out out
        cdef object op = <object>PyTuple_GET_ITEM(change, 0), before = <object>PyTuple_GET_ITEM(change, 2)
        cdef object after = <object>PyTuple_GET_ITEM(change, 3), key
        cdef bytes code
        if op is _CREATE:
            code = b"c"
        elif op is _UPDATE:
            code = b"u"
        elif op is _DELETE:
            code = b"d"
        else:
            return None
        if type(before) is not tuple if op is _DELETE else before is not None and type(before) is not tuple:
            return None
        if after is not None if op is _DELETE else type(after) is not tuple:
            return None
        take(&out)
        try:
            try:
                key = self.gone(&out, before) if op is _DELETE else self.rows(&out, before, after)
            except Exception:  # a value is missing or none of its type: the full path says which
                return None
            if key is None:
                return None
            if self.flat is not None:
                return self.flat.record(&out, frame, code, key, op is _DELETE, self.end)
            self.behind(&out, frame, <object>PyTuple_GET_ITEM(change, 4), code)
            return key, PyBytes_FromStringAndSize(<char *>out.start, out.size)
        finally:
            give(&out)

    cdef object rows(self, Out *out, object before, tuple after):
        """The key; the event up to where the rows end, of a flat one the row. None: the fast path declines the change."""
        cdef bytes key
        if self.stored is not None:
            if type(self.stored) is SizeBound:
                if (<SizeBound>self.stored).of(after) >= self.limit:
                    return None
            elif self.stored(after) >= self.limit:
                return None
        self.key(out, after)
        key = PyBytes_FromStringAndSize(<char *>out.start, out.size)
        if before is not None:
            out.size = 0
            self.key(out, before)
            if out.size != <size_t>PyBytes_GET_SIZE(key) or memcmp(out.start, PyBytes_AS_STRING(key), out.size) != 0:
                return None
        out.size = 0
        self.images(out, before, after)
        return key

    cdef object gone(self, Out *out, tuple before):
        """The same of a delete."""
        self.key(out, before)
        cdef bytes key = PyBytes_FromStringAndSize(<char *>out.start, out.size)
        out.size = 0
        self.images(out, before, None)
        return key


@cython.final
cdef class Reading(_Records):
    """The compiled form of `cdc.encode.fast_path.read_fast_path`."""

    cdef str topic
    cdef object write

    def __init__(self, encoder, write):
        _Records.__init__(self, encoder)
        self.topic, self.write = encoder.topic, write

    def __call__(self, rows, Py_ssize_t begin, Frame frame not None, lsn):
        cdef Out out
        cdef Py_ssize_t at, count = len(rows)
        cdef object row, key, value, write = self.write
        cdef str topic = self.topic
        cdef tuple record = None
        for at in range(begin, count):
            row = rows[at]
            if type(row) is not tuple:
                return at
            take(&out)
            try:
                try:
                    self.key(&out, row)
                    key = PyBytes_FromStringAndSize(<char *>out.start, out.size)
                    out.size = 0
                    self.images(&out, None, row)
                except Exception:
                    return at
                if self.flat is None:
                    self.behind(&out, frame, lsn, b"r")
                    value = PyBytes_FromStringAndSize(<char *>out.start, out.size)
                else:
                    record = self.flat.record(&out, frame, b"r", key, False, self.end)
            finally:
                give(&out)
            if record is None:
                write(topic, key, value)
            else:
                write(topic, record[0], record[1], record[2])
        return count


cdef class AtOnce:
    """The compiled form of `cdc.encode.fast_path.batch_fast_path`."""

    cdef dict ways
    cdef object look_up, write

    def __init__(self, ways, look_up, write):
        self.ways, self.look_up, self.write = ways, look_up, write

    def __call__(self, list transactions not None, Py_ssize_t begin, epoch, made_at_ms, str touched):
        cdef Frame frame = Frame.__new__(Frame)
        cdef Py_ssize_t at, count = len(transactions)
        cdef long long events = 0
        cdef object transaction, name, changes, change, table, of_table = None, record, write = self.write
        cdef tuple way
        cdef str topic = None
        cdef Way straight = None
        cdef list made
        cdef Py_ssize_t whole
        for at in range(begin, count):
            transaction = transactions[at]
            if type(transaction) is not _TRANSACTION:  # whose six items are taken without a look at its size
                return at - begin, events
            changes = <object>PyTuple_GET_ITEM(transaction, 4)
            if type(changes) is not list:
                return at - begin, events
            name = <object>PyTuple_GET_ITEM(transaction, 0)
            frame.begin(
                <object>PyTuple_GET_ITEM(transaction, 3), name, <object>PyTuple_GET_ITEM(transaction, 5), 0, b"false"
            )
            put_hex(&frame.out, epoch, 8)
            put(&frame.out, b".", 1)
            put_hex(&frame.out, <object>PyTuple_GET_ITEM(transaction, 2), 16)
            put(&frame.out, b".", 1)
            frame.end(name, made_at_ms)
            made, whole = [], 0
            for change in <list>changes:
                if type(change) is not _CHANGE:
                    self.unmake(changes, whole)
                    return at - begin, events
                table = <object>PyTuple_GET_ITEM(change, 1)
                if table is not of_table:
                    way = self.ways.get(id(table)) or self.look_up(table)
                    if type(way[1]) is not Way or way[0] == touched:
                        self.unmake(changes, whole)
                        return at - begin, events
                    topic, straight, of_table = way[0], way[1], table
                record = straight.record(change, frame)
                if record is None:
                    self.unmake(changes, whole)
                    return at - begin, events
                whole += 1
                if len(<tuple>record) == 3:
                    made.append((topic, record[0], record[1], record[2]))
                    continue
                made.append(
                    (topic, <object>PyTuple_GET_ITEM(record, 0), <object>PyTuple_GET_ITEM(record, 1))
                )
                if <object>PyTuple_GET_ITEM(change, 0) is _DELETE:
                    made.append((topic, <object>PyTuple_GET_ITEM(record, 0), None))
            for record in made:
                if len(<tuple>record) == 4:
                    write(record[0], record[1], record[2], record[3])
                    continue
                write(
                    <object>PyTuple_GET_ITEM(record, 0),
                    <object>PyTuple_GET_ITEM(record, 1),
                    <object>PyTuple_GET_ITEM(record, 2),
                )
            events += frame.events
        return count - begin, events

    cdef int unmake(self, list changes, Py_ssize_t whole) except -1:
        """Take the first `whole` events of a transaction out of the counts: it is not written by this path."""
        cdef Py_ssize_t i
        cdef object op
        cdef Way straight
        for i in range(whole):
            op = <object>PyTuple_GET_ITEM(changes[i], 0)
            straight = self.ways[id(<object>PyTuple_GET_ITEM(changes[i], 1))][1]
            straight.shape.made[3 if op is _CREATE else 5 if op is _UPDATE else 4] -= 1
        return 0


# ---- batches for the broker ----

cdef inline unsigned int murmur2(const unsigned char *key, Py_ssize_t size) noexcept:
    """`sinks.producer.batches.murmur2`."""
    cdef unsigned int found = 0x9747b28cU ^ <unsigned int>size, word
    cdef Py_ssize_t left = size
    while left >= 4:
        word = key[0] | <unsigned int>key[1] << 8 | <unsigned int>key[2] << 16 | <unsigned int>key[3] << 24
        word *= 0x5bd1e995U
        word = (word ^ word >> 24) * 0x5bd1e995U
        found = found * 0x5bd1e995U ^ word
        key += 4
        left -= 4
    if left >= 3:
        found ^= <unsigned int>key[2] << 16
    if left >= 2:
        found ^= <unsigned int>key[1] << 8
    if left >= 1:
        found = (found ^ key[0]) * 0x5bd1e995U
    found = (found ^ found >> 13) * 0x5bd1e995U
    return found ^ found >> 15


cdef inline size_t varint_size(size_t number) noexcept:
    """Of a number that is not negative."""
    cdef size_t size = 1
    number <<= 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


cdef inline unsigned char *put_varint(unsigned char *to, size_t number) noexcept:
    number <<= 1
    while number > 0x7F:
        to[0] = number & 0x7F | 0x80
        to += 1
        number >>= 7
    to[0] = number
    return to + 1


cdef bytes headers_of(headers):
    """`sinks.producer.batches.encoded`."""
    cdef Out out
    cdef Py_ssize_t size
    cdef const char *name
    take(&out)
    try:
        room_for(&out, 10)
        out.size = put_varint(out.start, len(headers)) - out.start
        for each in headers:
            name = PyUnicode_AsUTF8AndSize(each[0], &size)
            room_for(&out, size + 10)
            out.size = put_varint(out.start + out.size, size) - out.start
            put(&out, name, size)
            if not PyBytes_CheckExact(each[1]):
                raise TypeError("a header's value is bytes")
            size = PyBytes_GET_SIZE(each[1])
            room_for(&out, size + 10)
            out.size = put_varint(out.start + out.size, size) - out.start
            put_bytes(&out, each[1])
        return PyBytes_FromStringAndSize(<char *>out.start, out.size)
    finally:
        give(&out)


cdef struct Part:
    PyObject *bytes
    size_t size
    size_t room
    size_t last
    size_t count

cdef enum:
    PART_ROOM = 1 << 10
    AROUND = 40


cdef class _Topic:
    """What waits of a topic: for each partition an object of bytes that is written to before anybody else has it."""

    cdef str name
    cdef _Topic log
    cdef Part *parts
    cdef unsigned int partitions

    def __cinit__(self, str name, unsigned int partitions):
        if partitions == 0:
            raise ValueError("a topic without partitions")
        self.name, self.partitions = name, partitions
        self.parts = <Part *>calloc(partitions, sizeof(Part))
        if self.parts == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef unsigned int i
        if self.parts != NULL:
            for i in range(self.partitions):
                Py_XDECREF(self.parts[i].bytes)
            free(self.parts)

    cdef int room_for(self, Part *part, size_t more) except -1:
        """As much as the last batch took, at first. Where there is no memory, nothing waits: a size is of what is there."""
        cdef size_t room = part.room
        if part.bytes != NULL and room - part.size >= more:
            return 0
        if part.bytes == NULL:
            part.size = part.count = part.room = 0
            room = max(max(PART_ROOM, part.last + part.last // 16), more)
            part.bytes = PyBytes_New(NULL, room)
            if part.bytes == NULL:
                raise MemoryError
        else:
            room = max(room + room // 2, part.size + more)
            _PyBytes_Resize(&part.bytes, room)
        part.room = room
        return 0

    cdef object emptied(self, unsigned int partition):
        """What waits as a batch."""
        cdef Part *part = &self.parts[partition]
        cdef object count = part.count, records
        if part.bytes == NULL:
            return self.name, partition, 0, b""
        _PyBytes_Resize(&part.bytes, part.size)
        records = <object>part.bytes
        Py_XDECREF(part.bytes)
        part.last = part.size
        part.bytes = NULL
        part.count = part.size = part.room = 0
        return self.name, partition, count, records


cdef class Batches:
    """`sinks.producer.batches.PlainBatches`."""

    cdef object begin, send, ask, made
    cdef dict topics
    cdef list full, touched
    cdef str last
    cdef _Topic of_last
    cdef size_t most_records, most_bytes, due_records, due_bytes, batch_bytes
    cdef bint begun
    cdef readonly size_t records, bytes, waiting_records, waiting_bytes

    def __init__(self, begin, send, partitions, *, most_records, most_bytes, batch_bytes):
        from sinks.producer.batches import Batch

        self.begin, self.send, self.ask, self.made = begin, send, partitions, Batch._make
        self.most_records, self.most_bytes, self.batch_bytes = most_records, most_bytes, batch_bytes
        self.topics = {}
        self.touched = []
        self.last = self.of_last = None
        self.clear()

    def clear(self):
        cdef _Topic of
        for of, partition in self.touched:
            of.emptied(partition)
        self.touched, self.full = [], []
        self.records = self.bytes = 0
        self.begun = False
        self.is_taken()

    cdef void is_taken(self):
        self.waiting_records = self.waiting_bytes = 0
        self.due_records, self.due_bytes = self.most_records, self.most_bytes

    def add(self, str topic, bytes key, bytes value, headers=()):
        cdef _Topic of
        cdef bytes end = b"\0" if not headers else headers_of(headers)
        if not self.begun:
            self.begin()
            self.begun = True
        of = self.of_last
        if of is None or topic is not self.last:
            of = self.of(topic)
            self.last, self.of_last = topic, of
        self.append(of, key, value, end)
        if of.log is not None and value is not None:
            self.append(of.log, key, value, end)
        if self.waiting_records >= self.due_records or self.waiting_bytes >= self.due_bytes:
            self.send()
            self.due_records = self.waiting_records + self.most_records
            self.due_bytes = self.waiting_bytes + self.most_bytes

    cdef _Topic of(self, str topic):
        cdef _Topic of = self.topics.get(topic)
        if of is None:
            partitions, log = self.ask(topic)
            of = _Topic(topic, partitions)
            if log is not None:
                of.log = self.topics.get(log) or _Topic(log, self.ask(log)[0])
                self.topics[log] = of.log
            self.topics[topic] = of
        return of

    cdef int append(self, _Topic of, bytes key, bytes value, bytes end) except -1:
        cdef size_t key_size = PyBytes_GET_SIZE(key), end_size = PyBytes_GET_SIZE(end)
        cdef size_t value_size = 0 if value is None else PyBytes_GET_SIZE(value)
        cdef const unsigned char *of_key = <const unsigned char *>PyBytes_AS_STRING(key)
        cdef unsigned int partition = (murmur2(of_key, key_size) & 0x7FFFFFFF) % of.partitions
        cdef Part *part = &of.parts[partition]
        cdef unsigned char *start
        cdef unsigned char *to
        cdef size_t size
        if part.count and part.size + key_size + value_size + end_size + AROUND > self.batch_bytes:
            self.full.append(of.emptied(partition))
        elif part.count == 0:
            self.touched.append((of, partition))
        of.room_for(part, key_size + value_size + end_size + AROUND)
        start = <unsigned char *>PyBytes_AS_STRING(<object>part.bytes)
        size = 2 + varint_size(part.count) + varint_size(key_size) + key_size + value_size + end_size
        size += 1 if value is None else varint_size(value_size)
        to = put_varint(start + part.size, size)
        to[0] = to[1] = 0
        to = put_varint(put_varint(to + 2, part.count), key_size)
        memcpy(to, of_key, key_size)
        to += key_size
        if value is None:
            to[0] = 1
            to += 1
        else:
            to = put_varint(to, value_size)
            memcpy(to, PyBytes_AS_STRING(value), value_size)
            to += value_size
        memcpy(to, PyBytes_AS_STRING(end), end_size)
        part.size = to + end_size - start
        part.count += 1
        self.records += 1
        self.bytes += key_size + value_size + end_size - 1
        self.waiting_records += 1
        self.waiting_bytes += key_size + value_size + end_size - 1
        return 0

    def partitions(self):
        return len(self.touched)

    def take(self):
        cdef _Topic of
        cdef list taken = self.full
        self.full = []
        for of, partition in self.touched:
            taken.append(of.emptied(partition))
        self.touched = []
        self.is_taken()
        return [self.made(batch) for batch in taken]
