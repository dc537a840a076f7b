# cython: language_level=3, cdivision=True
"""Row images and small transactions of the binlog in C. Optional.

Without it `connectors.mysql.rows.row_images`, `binlog` and `grouping` do the same; they are the oracles.

Indexes of lists and tuples are checked, but where a function says why they need not be. C does not check pointers: each
function that is given one says what may be read from it, or checks it against an end.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromFormat, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_New
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from cdc.encode.digits cimport put_digits
from cdc.encode.tuples cimport empty, set_item

import struct

from cdc.model.change import UNCHANGED, Change, Op, Transaction

cdef extern from "Python.h":
    object PyUnicode_FromFormat(const char *, ...)
    const char *PyUnicode_AsUTF8(object) except NULL

cdef object _CHANGE = Change
cdef object _UNCHANGED = UNCHANGED

cdef enum:
    CALLED, SIGNED, UNSIGNED, DECIMAL, DATE, DATETIME, TIMESTAMP, SIZED

cdef dict _KINDS = {
    "signed": SIGNED, "unsigned": UNSIGNED, "decimal": DECIMAL, "date": DATE, "datetime": DATETIME,
    "timestamp": TIMESTAMP,
}
cdef uint64_t[10] _TENS = [1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000]
cdef int[10] _GROUPS = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
"""Bytes of that many digits of a DECIMAL."""


def kinds():
    """The names of values that `rows` may give."""
    return list(_KINDS)


cdef inline uint64_t little(const unsigned char *at, int size) noexcept:
    """Of `size` bytes from `at`, 8 at most; the caller has checked that they are there. So has that of `big`."""
    cdef uint64_t number = 0
    while size:
        size -= 1
        number = number << 8 | at[size]
    return number


cdef inline uint64_t big(const unsigned char *at, int size) noexcept:
    cdef uint64_t number = 0
    cdef int i
    for i in range(size):
        number = number << 8 | at[i]
    return number


cdef inline int padded(unsigned char *to, uint64_t number, int digits) noexcept:
    cdef int i = digits
    while i:
        i -= 1
        to[i] = 48 + number % 10
        number //= 10
    return digits


cdef enum:
    MADE = 96  # room for a text: of a DECIMAL 65 digits at most, a sign, a point, and a zero before it
    PRECISION_MAX = 65
    DECIMAL_BYTES_MAX = 40  # of 65 digits, however they are divided: 4 for every 9 and 4 at most for the rest of each side
    FRACTION_MAX = 6


cdef int decimal_size(int precision, int scale) except -1:
    """Bytes of a DECIMAL. Raises ValueError for one that is none: `decimal` counts on it."""
    if not 1 <= precision <= PRECISION_MAX or not 0 <= scale <= precision:
        raise ValueError("a DECIMAL of digits that it cannot have")
    return (
        (precision - scale) // 9 * 4 + _GROUPS[(precision - scale) % 9] + scale // 9 * 4 + _GROUPS[scale % 9]
    )


cdef int decimal(unsigned char *to, const unsigned char *raw, int size, int precision, int scale) noexcept:
    """The text's size; 0 if the bytes are of no number.

    `size` is `decimal_size(precision, scale)`: then groups have 1 to 9 digits, and end with `raw`.
    """
    cdef unsigned char bytes_[DECIMAL_BYTES_MAX]
    cdef int i, at = 0, digits, width, left, length = 0
    cdef bint negative = size > 0 and not raw[0] & 0x80, begun = False
    cdef uint64_t group
    if size < 1 or size > DECIMAL_BYTES_MAX:
        return 0
    memcpy(bytes_, raw, size)
    bytes_[0] ^= 0x80
    if negative:
        for i in range(size):
            bytes_[i] ^= 0xFF
        to[0] = 45
        length = 1
    left = precision - scale
    while left:
        digits = left % 9 or 9
        width = _GROUPS[digits]
        group = big(bytes_ + at, width)
        if group >= _TENS[digits]:
            return 0
        at += width
        left -= digits
        if begun:
            length += padded(to + length, group, digits)
        elif group:
            length += put_digits(to + length, group)
            begun = True
    if not begun:
        to[length] = 48
        length += 1
    if not scale:
        return length
    to[length] = 46
    length += 1
    left = scale
    while left:
        digits = 9 if left > 9 else left
        width = _GROUPS[digits]
        group = big(bytes_ + at, width)
        if group >= _TENS[digits]:
            return 0
        at += width
        left -= digits
        length += padded(to + length, group, digits)
    return length


cdef inline void day(unsigned char *to, uint64_t year, uint64_t month, uint64_t of_month) noexcept:
    padded(to, year, 4)
    to[4] = 45
    padded(to + 5, month, 2)
    to[7] = 45
    padded(to + 8, of_month, 2)


cdef inline void clock(unsigned char *to, uint64_t hour, uint64_t minute, uint64_t second) noexcept:
    padded(to, hour, 2)
    to[2] = 58
    padded(to + 3, minute, 2)
    to[5] = 58
    padded(to + 6, second, 2)


cdef inline int fraction(unsigned char *to, const unsigned char *raw, int digits) noexcept:
    """Its size with the point; -1 if the number has more digits. `digits` are FRACTION_MAX at most."""
    cdef uint64_t number = big(raw, (digits + 1) // 2)
    if not digits:
        return 0
    if digits & 1:
        number //= 10
    if number >= _TENS[digits]:
        return -1
    to[0] = 46
    return 1 + padded(to + 1, number, digits)


cdef int datetime(unsigned char *to, const unsigned char *raw, int digits) noexcept:
    cdef uint64_t packed = big(raw, 5), months = packed >> 22 & 0x1FFFF, hours = packed >> 12 & 31
    cdef int more = fraction(to + 19, raw + 5, digits)
    if not packed >> 39 or more < 0 or months // 13 > 9999:
        return 0
    day(to, months // 13, months % 13, packed >> 17 & 31)
    to[10] = 32
    clock(to + 11, hours, packed >> 6 & 63, packed & 63)
    return 19 + more


cdef int timestamp(unsigned char *to, const unsigned char *raw, int digits) noexcept:
    """http://howardhinnant.github.io/date_algorithms.html#civil_from_days"""
    cdef uint64_t seconds = big(raw, 4), of_day = seconds % 86400
    cdef uint64_t days = seconds // 86400 + 719468, era = days // 146097, of_era = days - era * 146097
    cdef uint64_t year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef uint64_t of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef uint64_t shifted = (5 * of_year + 2) // 153, month = shifted + 3 if shifted < 10 else shifted - 9
    cdef int more = fraction(to + 19, raw + 4, digits)
    if not seconds or more < 0:
        return 0
    day(to, year_of_era + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1)
    to[10] = 32
    clock(to + 11, of_day // 3600, of_day // 60 % 60, of_day % 60)
    return 19 + more


cdef class _Step:
    cdef int kind, size, first, second
    cdef int bit
    """Of the null bits; -1 where the column has no NULL."""
    cdef object unpack, text


cdef int check(_Step step) except -1:
    """That the bytes of a value are as many as what reads them takes. Raises ValueError."""
    cdef int size = step.size
    if step.kind == DECIMAL:
        size = decimal_size(step.first, step.second)
    elif step.kind == DATE:
        size = 3
    elif step.kind == DATETIME or step.kind == TIMESTAMP:
        if not 0 <= step.first <= FRACTION_MAX:
            raise ValueError("a fraction of so many digits")
        size = (5 if step.kind == DATETIME else 4) + (step.first + 1) // 2
    elif (step.kind == SIGNED or step.kind == UNSIGNED) and not 1 <= step.size <= 8:
        raise ValueError("an integer of so many bytes")
    if step.size != size or size < 0:
        raise ValueError("a value of another size")
    return 0


cdef class Image:
    """`rows._compiled`: what reads one image with these columns in it, of a body and where it begins."""

    cdef list steps
    """None for a column that is not in it."""
    cdef int bits

    def __init__(self, forms, nullable, present):
        """`forms` as `rows` has them: (text's name and two numbers, layout, what makes text of it) or (size, text)."""
        cdef _Step step
        cdef int bit = 0
        self.steps = []
        if len(forms) != len(nullable) or len(forms) != len(present):
            raise ValueError("columns of different numbers")
        for form, may_be_null, there in zip(forms, nullable, present, strict=True):
            if not there:
                self.steps.append(None)
                continue
            step = _Step()
            step.bit = bit if may_be_null else -1
            bit += 1
            if len(form) == 2:
                step.kind = SIZED
                step.size, step.text = form
                if not 1 <= step.size <= 4:
                    raise ValueError("a length of so many bytes")
            else:
                told, layout, step.text = form
                name, step.first, step.second = told or ("", 0, 0)
                step.kind = _KINDS.get(name, CALLED)
                step.size = struct.calcsize("<" + layout)
                step.unpack = struct.Struct("<" + layout).unpack_from
                check(step)
            self.steps.append(step)
        self.bits = (bit + 7) // 8

    def __call__(self, bytes body not None, Py_ssize_t at):
        if at < 0:
            raise IndexError
        row = self.read(body, &at)
        return row, at

    @cython.boundscheck(False)  # i is below count, which is the size of `steps` and of the row; `steps` never changes
    @cython.wraparound(False)
    cdef tuple read(self, bytes body, Py_ssize_t *at):
        """The row at `at`, which is moved behind it; it must not be negative. Raises IndexError for one that ends early.

        A value is read where `check` and the comparison with `end` have shown that all its bytes are there. A null bit
        is of the `bits` bytes that are there before the first value.
        """
        cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(body)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(body), p = at[0] + self.bits, i, count = len(self.steps), size
        cdef const unsigned char *nulls = text + at[0]
        cdef tuple row = PyTuple_New(count)
        cdef _Step step
        cdef object value
        cdef unsigned char made[MADE]
        cdef int length
        cdef int64_t number
        if at[0] > end or p > end:
            raise IndexError
        for i in range(count):
            step = self.steps[i]
            if step is None:
                set_item(row, i, _UNCHANGED)
                continue
            if step.bit >= 0 and nulls[step.bit >> 3] >> (step.bit & 7) & 1:
                set_item(row, i, None)
                continue
            if step.size > end - p:
                raise IndexError
            if step.kind == SIZED:
                size = <Py_ssize_t>little(text + p, step.size)
                p += step.size
                if size > end - p:
                    raise IndexError
                value = PyBytes_FromStringAndSize(<const char *>text + p, size)
                if step.text is not None:
                    value = step.text(value)
                set_item(row, i, value)
                p += size
                continue
            length = 0
            if step.kind == SIGNED:
                number = <int64_t>(little(text + p, step.size) << (64 - 8 * step.size)) >> (64 - 8 * step.size)
                if number < 0:
                    made[0] = 45
                    length = 1 + put_digits(made + 1, 0 - <uint64_t>number)
                else:
                    length = put_digits(made, number)
            elif step.kind == UNSIGNED:
                length = put_digits(made, little(text + p, step.size))
            elif step.kind == DECIMAL:
                length = decimal(made, text + p, step.size, step.first, step.second)
            elif step.kind == DATETIME:
                length = datetime(made, text + p, step.first)
            elif step.kind == TIMESTAMP:
                length = timestamp(made, text + p, step.first)
            elif step.kind == DATE:
                number = little(text + p, 3)
                if number >> 9 <= 9999:
                    day(made, number >> 9, number >> 5 & 15, number & 31)
                    length = 10
            if length:
                value = PyBytes_FromStringAndSize(<const char *>made, length)
            else:
                value = step.text(*step.unpack(body, p))
            set_item(row, i, value)
            p += step.size
        at[0] = p
        return row


cdef int advances(Image before, Image after) except -1:
    """That each row has a byte at least: else rows would never end. Raises IndexError."""
    if (before is None or before.bits == 0) and (after is None or after.bits == 0):
        raise IndexError
    return 0


def images(Image before, Image after, bytes body not None):
    """What `rows.Reader` gives of all rows of an event. Raises IndexError for one that ends early."""
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(body)
    cdef list found = []
    cdef object old, new
    if end:
        advances(before, after)
    while at < end:
        old = None if before is None else before.read(body, &at)
        new = None if after is None else after.read(body, &at)
        found.append((old, new))
    return found


def changes(op, table, Image before, Image after, bytes body not None, offset):
    """The same as changes; `offset` is where the event begins."""
    cdef list found = []
    add_changes(found, op, table, before, after, body, offset)
    return found


cdef int add_changes(list found, op, table, Image before, Image after, bytes body, offset) except -1:
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(body), number = 0
    cdef object change, old, new
    if end:
        advances(before, after)
    while at < end:
        old = None if before is None else before.read(body, &at)
        new = None if after is None else after.read(body, &at)
        change = empty(_CHANGE, 5)
        set_item(change, 0, op)
        set_item(change, 1, table)
        set_item(change, 2, old)
        set_item(change, 3, new)
        set_item(change, 4, (offset, number))
        found.append(change)
        number += 1
    return 0


# ---- transactions ----

cdef uint32_t[8][256] _CRC


cdef void _fill_crc() noexcept:
    """https://create.stephan-brumme.com/crc32/#slicing-by-8-overview"""
    cdef uint32_t crc
    cdef int i, j
    for i in range(256):
        crc = i
        for j in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        _CRC[0][i] = crc
    for i in range(256):
        for j in range(1, 8):
            _CRC[j][i] = _CRC[j - 1][i] >> 8 ^ _CRC[0][_CRC[j - 1][i] & 0xFF]


_fill_crc()


cdef uint32_t crc32(const unsigned char *at, Py_ssize_t size) noexcept:
    """Of `size` bytes from `at`. Each index into `_CRC` is one byte."""
    cdef uint32_t crc = 0xFFFFFFFF, one, two
    while size >= 8:
        one = <uint32_t>little(at, 4) ^ crc
        two = <uint32_t>little(at + 4, 4)
        crc = (
            _CRC[7][one & 0xFF] ^ _CRC[6][one >> 8 & 0xFF] ^ _CRC[5][one >> 16 & 0xFF] ^ _CRC[4][one >> 24]
            ^ _CRC[3][two & 0xFF] ^ _CRC[2][two >> 8 & 0xFF] ^ _CRC[1][two >> 16 & 0xFF] ^ _CRC[0][two >> 24]
        )
        at += 8
        size -= 8
    while size:
        crc = crc >> 8 ^ _CRC[0][(crc ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return ~crc


cdef enum:
    PACKET_HEAD = 4
    EVENT_HEAD = 19
    CRC_SIZE = 4
    GTID_SIZE = 49
    MOST = 1 << 16  # bytes of a transaction that is looked at: of longer ones, events are read one by one
    WHOLE = 0xFFFFFF

cdef object _TRANSACTION = Transaction
cdef tuple _OPS = (Op.CREATE, Op.UPDATE, Op.DELETE)


cdef class _Of:
    """What rows under a table map are."""

    cdef object told, table
    """`table` is None where it is not captured."""
    cdef Image image
    cdef Py_ssize_t columns


cdef class Small:
    """Reads small transactions of MySQL at once, which lie whole in a buffer, as packets. See `fast_path.small`."""

    cdef bint checksum, by_gtid
    cdef dict begins, maps
    cdef object uuids, known
    cdef bytes last_begin, last_map, last_uuid
    cdef _Of of_last_map
    cdef str of_last_uuid
    cdef dict ofs
    """By the `id` of a table map. Of one call: what a map means may change in between."""
    cdef str file
    cdef list changes
    cdef uint64_t server, seconds, gno, at_us, begin_pos, last_pos, end_pos
    cdef bytes uuid

    def __init__(self, begins, maps, uuids, known, *, checksum, by_gtid):
        """`begins` are the statements known as BEGIN, by their bytes; `maps` the table maps, by theirs."""
        self.begins, self.maps, self.uuids, self.known = begins, maps, uuids, known
        self.checksum, self.by_gtid = checksum, by_gtid
        self.last_begin = self.last_map = self.last_uuid = None

    def __call__(self, bytearray buffer not None, Py_ssize_t begin, of_file, uint64_t done, Py_ssize_t most):
        """(where they end in the buffer, transactions with changes, GTIDs as (uuid, first, last), offsets of the first's
        beginning and of the last's end, the last as (offset of its beginning, GTID or None, µs since 1970)).

        None: there is none. Ends before what is not there yet, is longer than small, does not match its checksum, or is
        nothing that was seen before, and behind `most` changes.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)  # while it is held, nothing that is called can change its size
        try:
            return self.several(&view, begin, of_file, done, most)
        finally:
            PyBuffer_Release(&view)

    cdef object several(self, Py_buffer *view, Py_ssize_t begin, of_file, uint64_t done, Py_ssize_t most):
        cdef Py_ssize_t at = begin, taken, count = 0, passed = 0
        cdef list found = [], numbers = []
        cdef uint64_t start = 0, end = 0, first = 0, last = 0, commit, last_begin = 0, last_us = 0
        cdef bint named = False
        cdef str uuid = None
        cdef bytes quoted
        cdef uint64_t number
        if begin < 0 or begin > view.len:
            raise IndexError
        self.file, quoted, number = of_file
        self.ofs, self.last_map = {}, None
        self.end_pos = 0
        while count < most and passed < most:
            try:
                taken = self.one(view, at, number << 32, done)
            except Exception:  # reading it event by event says what is wrong
                break
            if taken == 0:
                break
            at, end = taken, self.end_pos
            if passed == 0:
                start = self.begin_pos
            count += len(self.changes)
            passed += 1
            named, last_begin = self.uuid is not None, self.begin_pos
            last_us = self.at_us if self.at_us else self.seconds * 1000000
            commit = number << 32 | self.last_pos
            if self.uuid is not None:
                if self.last_uuid is None or self.uuid != self.last_uuid:
                    self.last_uuid, self.of_last_uuid = self.uuid, self.uuids[self.uuid]
                if uuid is self.of_last_uuid and self.gno == last + 1:
                    last = self.gno
                else:
                    if uuid is not None:
                        numbers.append((uuid, first, last))
                    uuid, first, last = self.of_last_uuid, self.gno, self.gno
            if self.changes:
                found.append(self.made(quoted, commit))
        if uuid is not None:
            numbers.append((uuid, first, last))
        self.changes = None
        if at == begin:
            return None
        return at, found, numbers, start, end, (last_begin, f"{uuid}:{last}" if named else None, last_us)

    cdef object made(self, bytes quoted, uint64_t commit):
        cdef object made = empty(_TRANSACTION, 6)
        cdef object name, where
        if self.uuid is not None:
            name = PyUnicode_FromFormat("%U:%llu", <void *>self.of_last_uuid, <unsigned long long>self.gno)
            where = PyBytes_FromFormat(
                '"server_id":%lu,"gtid":"%s","file":%s,"pos":%%d,"row":%%d',
                <unsigned long>self.server, PyUnicode_AsUTF8(name), PyBytes_AS_STRING(quoted),
            )
        else:
            name = PyUnicode_FromFormat("%U:%llu", <void *>self.file, <unsigned long long>self.begin_pos)
            where = PyBytes_FromFormat(
                '"server_id":%lu,"gtid":null,"file":%s,"pos":%%d,"row":%%d',
                <unsigned long>self.server, PyBytes_AS_STRING(quoted),
            )
        set_item(made, 0, name)
        set_item(made, 1, name if self.uuid is not None and self.by_gtid else commit)
        set_item(made, 2, commit)
        set_item(made, 3, self.at_us // 1000 if self.at_us else self.seconds * 1000)
        set_item(made, 4, self.changes)
        set_item(made, 5, where)
        return made

    cdef Py_ssize_t one(self, Py_buffer *view, Py_ssize_t begin, uint64_t of_file, uint64_t done) except -1:
        """A transaction: GTID, BEGIN, maps and rows, XID. Gives where it ends in the buffer; 0: it is not for here.

        `at` is in the buffer. Of each packet, its length is compared with what is there, and with the least that an
        event has: header and checksum are there then, and `length_of_text`, what is between them, is not negative. No
        event begins in the file before the end of the last one.
        """
        cdef const unsigned char *text = <const unsigned char *>view.buf
        cdef Py_ssize_t size = view.len, at = begin, length, end, length_of_text
        cdef const unsigned char *event
        cdef int kind, seen = 0
        cdef uint64_t end_pos, table, table_a = 0, before = self.end_pos
        cdef _Of of_a = None, of
        cdef dict others = None
        cdef list rows = []
        while True:
            if size - at < PACKET_HEAD + 1 + EVENT_HEAD + CRC_SIZE or at - begin > MOST:
                return 0
            length = little(text + at, 3)
            if length == WHOLE or length > size - at - PACKET_HEAD or length < 1 + EVENT_HEAD + CRC_SIZE:
                return 0
            event = text + at + PACKET_HEAD + 1
            if text[at + PACKET_HEAD] != 0:
                return 0
            length -= 1
            kind, end_pos = event[4], little(event + 13, 4)
            if <Py_ssize_t>little(event + 9, 4) != length or end_pos < before + <uint64_t>length:
                return 0
            before = end_pos
            end = length
            if self.checksum:
                end -= CRC_SIZE
                if crc32(event, end) != <uint32_t>little(event + end, 4):
                    return 0
            at += PACKET_HEAD + 1 + length
            length_of_text = end - EVENT_HEAD
            if seen == 0:
                if not self.headed(event, kind, end):
                    return 0
                self.begin_pos = end_pos - length
                seen = 1
            elif seen == 1:
                if kind != 2 or length_of_text < 8 or not self.begins_with(event + EVENT_HEAD + 8, length_of_text - 8):
                    return 0
                seen = 2
            elif kind == 19:
                if length_of_text < 6:
                    return 0
                of = self.mapped(event + EVENT_HEAD, length_of_text, end_pos - length)
                if of is None:
                    return 0
                table = little(event + EVENT_HEAD, 6)
                if of_a is None or table == table_a:
                    table_a, of_a = table, of
                else:
                    others = {} if others is None else others
                    others[table] = of
            elif 23 <= kind <= 25 or 30 <= kind <= 32:
                if length_of_text < 6:
                    return 0
                table = little(event + EVENT_HEAD, 6)
                of = of_a if of_a is not None and table == table_a else None if others is None else others.get(table)
                if of is None or not self.rows_of(rows, of, event, end, kind, end_pos - length):
                    return 0
            elif kind == 16:
                if length_of_text != 8:
                    return 0
                self.last_pos, self.end_pos = end_pos - length, end_pos
                self.changes = rows if of_file | self.last_pos >= done else []
                return at
            elif kind != 29:  # the statement behind the rows
                return 0

    cdef bint headed(self, const unsigned char *event, int kind, Py_ssize_t end) except -1:
        """A GTID of a transaction that was first committed on this server. Nothing is read at or behind `end`."""
        cdef uint64_t packed
        if (kind != 33 and kind != 34) or end <= EVENT_HEAD + GTID_SIZE or event[EVENT_HEAD + 25] != 2:
            return False
        if event[EVENT_HEAD + GTID_SIZE - 1] & 0x80:
            return False
        packed = event[EVENT_HEAD + GTID_SIZE]
        if packed >= 0xFB and (not 0xFC <= packed <= 0xFD or EVENT_HEAD + GTID_SIZE + <Py_ssize_t>packed - 0xFA >= end):
            return False
        self.uuid = None
        if kind == 33:
            if self.last_uuid is not None and memcmp(PyBytes_AS_STRING(self.last_uuid), event + EVENT_HEAD + 1, 16) == 0:
                self.uuid = self.last_uuid
            else:
                self.uuid = PyBytes_FromStringAndSize(<const char *>event + EVENT_HEAD + 1, 16)
        self.gno, self.at_us = little(event + EVENT_HEAD + 17, 8), little(event + EVENT_HEAD + 42, 7)
        self.server, self.seconds = little(event + 5, 4), little(event, 4)
        return self.at_us >= 1000 or (self.at_us == 0 and self.seconds)  # else its end says when it was

    cdef bint begins_with(self, const unsigned char *text, Py_ssize_t size) except -1:
        """Whether this is known as BEGIN."""
        cdef bytes said = self.last_begin
        if said is not None and PyBytes_GET_SIZE(said) == size and memcmp(PyBytes_AS_STRING(said), text, size) == 0:
            return True
        said = PyBytes_FromStringAndSize(<const char *>text, size)
        if said not in self.begins:
            return False
        self.last_begin = said
        return True

    cdef _Of mapped(self, const unsigned char *text, Py_ssize_t size, uint64_t offset):
        """What rows under a table map are; None for a map that was not seen before."""
        cdef bytes said = self.last_map
        cdef _Of of
        if said is not None and PyBytes_GET_SIZE(said) == size and memcmp(PyBytes_AS_STRING(said), text, size) == 0:
            return self.of_last_map
        said = PyBytes_FromStringAndSize(<const char *>text, size)
        told = self.maps.get((said, False))
        if told is None:
            return None
        of = self.ofs.get(id(told))
        if of is None:
            of = _Of()
            of.told, of.table, of.image, of.columns = told, None, None, len(told.columns)
            found = self.known(told, self.file, offset)
            if found is not None:
                of.table, of.image = found
            self.ofs[id(told)] = of
        self.last_map, self.of_last_map = said, of
        return of

    cdef bint rows_of(
        self, list found, _Of of, const unsigned char *event, Py_ssize_t end, int kind, uint64_t offset
    ) except -1:
        """Add the changes of an event, if it has whole rows. Raises IndexError for one that ends early.

        Nothing is read at or behind `end`: of the columns' bits there are two parts at most, up to `begin`.
        """
        cdef Py_ssize_t at = EVENT_HEAD + 8, bits, begin
        cdef int op = (kind - 23) % 7
        cdef bytes body
        if kind >= 30:
            if end < at + 2 or little(event + at, 2) < 2:
                return False
            at += little(event + at, 2)
        if end <= at or event[at] >= 0xFB or event[at] != of.columns:
            return False
        at += 1
        bits = (of.columns + 7) // 8
        begin = at + 2 * bits if op == 1 else at + bits
        if begin > end or not are_all(event + at, of.columns) or not are_all(event + begin - bits, of.columns):
            return False
        if of.table is None:
            return True
        if of.image is None:
            return False
        body = PyBytes_FromStringAndSize(<const char *>event + begin, end - begin)
        add_changes(
            found, _OPS[op], of.table, of.image if op != 0 else None, of.image if op != 2 else None, body, offset
        )
        return True


cdef inline bint are_all(const unsigned char *bits, Py_ssize_t columns) noexcept:
    """Whether an image has every column; bits behind the last column do not count. `bits` are `columns` at least."""
    cdef Py_ssize_t i
    for i in range(columns >> 3):
        if bits[i] != 0xFF:
            return False
    return columns & 7 == 0 or bits[columns >> 3] | 0xFF << (columns & 7) == <int>(0xFF | 0xFF << (columns & 7))


def text_rows(bytes seen not None, Py_ssize_t columns, int number):
    """Rows of a result, as packets of a text protocol: (bytes taken, the next packet's number, rows).

    Ends before what is not there whole, and before what is not a row or not in order. An empty row of one column looks
    like the result's end to nobody: its packet is longer.
    https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset_row.html
    """
    cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(seen)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(seen), at = 0, p, end, i
    cdef uint64_t length
    cdef unsigned char first
    cdef list rows = []
    cdef tuple row
    cdef object value
    if columns < 0:
        raise ValueError("a number of columns below zero")
    while size - at > PACKET_HEAD:  # below, p is never behind `end`, nor that behind what is there
        length = little(text + at, 3)
        if length == 0 or length == WHOLE or length > <uint64_t>(size - at - PACKET_HEAD) or text[at + 3] != number:
            break
        p = at + PACKET_HEAD
        end = p + length
        if text[p] >= 0xFE:
            break
        row = PyTuple_New(columns)
        for i in range(columns):
            if p >= end:
                break
            first = text[p]
            p += 1
            if first == 0xFB:
                set_item(row, i, None)
                continue
            length = first
            if first > 0xFB:
                if first > 0xFD or end - p < first - 0xFA:
                    break
                length = little(text + p, first - 0xFA)
                p += first - 0xFA
            if length > <uint64_t>(end - p):
                break
            value = PyBytes_FromStringAndSize(<const char *>text + p, length)
            set_item(row, i, value)
            p += length
        else:
            if p != end:
                break
            rows.append(row)
            at = end
            number = (number + 1) % 256
            continue
        break
    return at, number, rows
