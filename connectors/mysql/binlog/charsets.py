"""Knows the servers' character sets: collation numbers to names, bytes to the text the servers make of them. Pure.

All bytes, and all sequences of two (EUC-JP: three), were compared with CONVERT(… USING utf8mb4) of MySQL 9.7 and
MariaDB 10.11. Where Python's codec differs, the tables here do as the server does: for sets that Python does not have,
holes of cp1252, private areas of the Japanese ones. What the server would print as a question mark is an error here.

https://dev.mysql.com/doc/refman/en/charset-charsets.html https://mariadb.com/kb/en/supported-character-sets-and-collations/
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple, TypeAlias

Decode: TypeAlias = Callable[[bytes], str]

_COLLATIONS: Final[dict[str, tuple[range, ...]]] = {
    "armscii8": (range(32, 33), range(64, 65)),
    "ascii": (range(11, 12), range(65, 66)),
    "big5": (range(1, 2), range(84, 85)),
    "binary": (range(63, 64),),
    "cp1250": (range(26, 27), range(34, 35), range(44, 45), range(66, 67), range(99, 100)),
    "cp1251": (range(14, 15), range(23, 24), range(50, 53)),
    "cp1256": (range(57, 58), range(67, 68)),
    "cp1257": (range(29, 30), range(58, 60)),
    "cp850": (range(4, 5), range(80, 81)),
    "cp852": (range(40, 41), range(81, 82)),
    "cp866": (range(36, 37), range(68, 69)),
    "cp932": (range(95, 97),),
    "dec8": (range(3, 4), range(69, 70)),
    "eucjpms": (range(97, 99),),
    "euckr": (range(19, 20), range(85, 86)),
    "gb18030": (range(248, 251),),
    "gb2312": (range(24, 25), range(86, 87)),
    "gbk": (range(28, 29), range(87, 88)),
    "geostd8": (range(92, 94),),
    "greek": (range(25, 26), range(70, 71)),
    "hebrew": (range(16, 17), range(71, 72)),
    "hp8": (range(6, 7), range(72, 73)),
    "keybcs2": (range(37, 38), range(73, 74)),
    "koi8r": (range(7, 8), range(74, 75)),
    "koi8u": (range(22, 23), range(75, 76)),
    "latin1": (range(5, 6), range(8, 9), range(15, 16), range(31, 32), range(47, 50), range(94, 95)),
    "latin2": (range(2, 3), range(9, 10), range(21, 22), range(27, 28), range(77, 78)),
    "latin5": (range(30, 31), range(78, 79)),
    "latin7": (range(20, 21), range(41, 43), range(79, 80)),
    "macce": (range(38, 39), range(43, 44)),
    "macroman": (range(39, 40), range(53, 54)),
    "sjis": (range(13, 14), range(88, 89)),
    "swe7": (range(10, 11), range(82, 83)),
    "tis620": (range(18, 19), range(89, 90)),
    "ucs2": (range(35, 36), range(90, 91), range(128, 160), range(640, 643), range(2560, 2816)),
    "ujis": (range(12, 13), range(91, 92)),
    "utf16": (range(54, 56), range(101, 128), range(672, 675), range(2816, 3072)),
    "utf16le": (range(56, 57), range(62, 63)),
    "utf32": (range(60, 62), range(160, 192), range(736, 739), range(3072, 3328)),
    "utf8mb3": (range(33, 34), range(76, 77), range(83, 84), range(192, 224), range(576, 579), range(2048, 2304)),
    "utf8mb4": (range(45, 47), range(224, 248), range(255, 512), range(608, 611), range(2304, 2560)),
}
"""Numbers of collations by their character set; with room where the servers keep room for a set's next collations."""
_NOPAD: Final = range(1024, 2048)
"""MariaDB's NOPAD collations: the padded one's number and 1024."""
_CHARSETS: Final = {n: name for name, ranges in _COLLATIONS.items() for numbers in ranges for n in numbers}


def of_collation(number: int) -> str:
    """Return a collation's character set; ``collation <number>`` for an unknown one, which `decoder` refuses."""
    known = _CHARSETS.get(number - _NOPAD.start if number in _NOPAD else number)
    return known or f"collation {number}"


_MAX_BYTES: Final = {
    **dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis", "ucs2"), 2),
    **dict.fromkeys(("eucjpms", "ujis", "utf8", "utf8mb3"), 3),
    **dict.fromkeys(("gb18030", "utf16", "utf16le", "utf32", "utf8mb4"), 4),
}


def max_bytes(charset: str) -> int:
    """Return the bytes of the set's longest character, by which the servers count a CHAR(n)."""
    return _MAX_BYTES.get(charset, 1)


AS_UTF8: Final = frozenset({"utf8mb4", "utf8mb3", "utf8", "binary"})
"""Sets whose bytes a session over utf8mb4 gets as they are."""
_OTHER_ASCII: Final = frozenset({"swe7", "ucs2", "utf16", "utf16le", "utf32"})

_CODECS: Final = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ascii": "ascii",
    "binary": "latin-1",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "euckr": "cp949",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "hp8": "hp-roman8",
    "koi8r": "koi8-r",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac-latin2",
    "macroman": "mac-roman",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
"""Names Python's codec where it agrees with the server's."""

_HOLE: Final = "\ufffe"
"""No character, as codecs.charmap_decode has it."""
_PATCHED: Final[dict[str, tuple[str, dict[int, str]]]] = {
    "latin1": ("cp1252", {code: chr(code) for code in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}),
    "hebrew": ("iso8859-8", {0xAF: "\u203e"}),
    "koi8u": ("koi8-u", {0x95: "\u2022"}),
    "greek": ("iso8859-7", {0xA1: "\u02bd", 0xA2: "\u02bc", 0xA4: _HOLE, 0xA5: _HOLE, 0xAA: _HOLE}),
    "cp866": ("cp866", {0xFC: "\u207f", 0xFD: "\u00b2"}),
    "cp1256": ("cp1256", dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), _HOLE)),
    "tis620": ("tis-620", dict.fromkeys((0xA0, *range(0xDB, 0xDF), *range(0xFC, 0x100)), "\ufffd")),
}
"""A codec of one byte a character, and where the server has another one."""
_TABLES: Final = {
    "armscii8": ("\xa0❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"),
    "dec8": (
        "\xa0\xa1¢£\ufffe¥\ufffe§¤©ª«\ufffe\ufffe\ufffe\ufffe°±²³\ufffeµ¶·\ufffe¹º»¼½\ufffe¿ÀÁÂÃÄÅÆ"
        "ÇÈÉÊËÌÍÎÏ\ufffeÑÒÓÔÕÖŒØÙÚÛÜŸ\ufffeßàáâãäåæçèéêëìíîï\ufffeñòóôõöœøùúûüÿ\ufffe\ufffe"
    ),
    "geostd8": (
        "€\ufffe‚\ufffe„…†‡\ufffe‰\ufffe‹\ufffe\ufffe\ufffe\ufffe\ufffe‘’“”•–—\ufffe\ufffe\ufffe›"
        "\ufffe\ufffe\ufffe\ufffe\xa0\xa1¢£¤¥¦§¨©ª«¬\xad®¯°±²³´µ¶·¸¹º»¼½¾¿აბგდევზჱთიკლმნჲოპჟრსტჳუფქ"
        "ღყშჩცძწჭხჴჯჰჵ\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe"
        "\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe№\ufffe\ufffe"
    ),
    "keybcs2": (
        "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼\xa1«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓"
        "╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
    ),
}
"""The last characters of a table of 256 that begins as latin-1 does."""
_SWE7: Final = {
    0x40: "É",
    0x5B: "Ä",
    0x5C: "Ö",
    0x5D: "Å",
    0x5E: "Ü",
    0x60: "é",
    0x7B: "ä",
    0x7C: "ö",
    0x7D: "å",
    0x7E: "ü",
}


class _Multibyte(NamedTuple):
    codec: str
    differs: Callable[[bytes], object]
    """Finds what may be a sequence of `own`: then the text is taken apart, else the codec does it."""
    split: Callable[[bytes], list[bytes]]
    own: dict[bytes, str]


def _private_areas() -> dict[bytes, str]:
    """Return the user-defined rows of EUC-JP: 940 of two bytes, 940 of three."""
    rows = [(prefix, high) for prefix in (b"", b"\x8f") for high in range(0xF5, 0xFF)]
    return {
        prefix + bytes((high, low)): chr(0xE000 + 94 * row + low - 0xA1)
        for row, (prefix, high) in enumerate(rows)
        for low in range(0xA1, 0xFF)
    }


def _row(prefix: bytes, first: int, characters: str) -> dict[bytes, str]:
    return {prefix + bytes((first + i,)): character for i, character in enumerate(characters) if character != _HOLE}


_EUC_SPLIT: Final = re.compile(rb"\x8f..|[\x8e\xa1-\xfe].|.", re.DOTALL).findall
_SJIS_SPLIT: Final = re.compile(rb"[\x81-\x9f\xe0-\xfc].|.", re.DOTALL).findall
_NEC_ROW: Final = (
    "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ\ufffe㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡\ufffe\ufffe\ufffe\ufffe\ufffe"
    "\ufffe\ufffe\ufffe㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪\ufffe\ufffe"
)
_IBM_ROW: Final = (
    "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ"
    "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤﨎咊坙﨏塚增寬峵嵓﨑德悅愠敎昻晥晴朗栁﨓﨔橫櫢淸淲瀨凞猪甁皂皞益礰礼神祥福竧靖精綠緖羽荢﨟薰蘒﨡蠇諸譿賴赶﨣﨤逸郞都鄕﨧﨨閒隆﨩霻靍靑飯飼館馞"
    "髙魲鶴黑"
)
_MULTIBYTE: Final[dict[str, _Multibyte]] = {
    "big5": _Multibyte(
        "big5",
        re.compile(rb"\xa1[\x5a\xc3\xc5\xfe]|\xa2[\x40\xcc\xce]|\xf9[\xd6-\xdc]").search,
        re.compile(rb"[\x81-\xfe].|.", re.DOTALL).findall,
        {
            **dict.fromkeys((b"\xa1\x5a", b"\xa1\xc3", b"\xa1\xc5", b"\xa1\xfe"), "\ufffd"),
            **dict.fromkeys((b"\xa2\x40", b"\xa2\xcc", b"\xa2\xce"), "\ufffd"),
            **_row(b"\xf9", 0xD6, "碁銹裏墻恒粧嫺"),
        },
    ),
    "gb18030": _Multibyte(
        "gb18030",
        re.compile(rb"\xa8\xbc").search,
        re.compile(rb"[\x81-\xfe][0-9].[0-9]|[\x81-\xfe].|.", re.DOTALL).findall,
        {b"\xa8\xbc": "\u1e3f"},
    ),
    "sjis": _Multibyte("shift-jis", re.compile(rb"\x81\x5f").search, _SJIS_SPLIT, {b"\x81\x5f": "\\"}),
    "cp932": _Multibyte(
        "cp932",
        re.compile(rb"[\x80\xa0\xfd-\xff]").search,
        _SJIS_SPLIT,
        {bytes([n]): _HOLE for n in (0x80, 0xA0, 0xFD, 0xFE, 0xFF)},
    ),
    "ujis": _Multibyte(
        "euc-jp", re.compile(rb"\xa1\xc0|[\xf5-\xfe]").search, _EUC_SPLIT, {b"\xa1\xc0": "\\", **_private_areas()}
    ),
    "eucjpms": _Multibyte(
        "euc-jp",
        re.compile(rb"\xa1[\xc1\xc2\xdd\xf1\xf2]|\xa2[\xb7\xc3\xcc]|\xad|[\xf3-\xfe]").search,
        _EUC_SPLIT,
        {
            b"\xa1\xc1": "\uff5e",
            b"\xa1\xc2": "\u2225",
            b"\xa1\xdd": "\uff0d",
            b"\xa1\xf1": "\uffe0",
            b"\xa1\xf2": "\uffe1",
            b"\xa2\xcc": "\uffe2",
            b"\x8f\xa2\xb7": "\uff5e",
            b"\x8f\xa2\xc3": "\uffe4",
            **_row(b"\xad", 0xA1, _NEC_ROW),
            **_row(b"\x8f\xf3", 0xF3, _IBM_ROW[:12]),
            **_row(b"\x8f\xf4", 0xA1, _IBM_ROW[12:]),
            **_private_areas(),
        },
    ),
}


@cache
def decoder(charset: str) -> Decode:
    """Return what decodes bytes of that character set to text.

    It raises ValueError, without the bytes, on what is not valid. Raises LookupError for a set that is not known here.
    """
    if charset in _MULTIBYTE:
        return _by_multibyte(charset, _MULTIBYTE[charset])
    if charset in _CODECS:
        return _by_codec(charset, _CODECS[charset])
    if charset == "ucs2":
        return _ucs2
    table = _table(charset)

    def decode(raw: bytes) -> str:
        try:
            return codecs.charmap_decode(raw, "strict", table)[0]
        except UnicodeDecodeError:
            pass  # raised below, because the error holds the value
        raise ValueError(f"bytes that are not valid {charset}")

    return decode


def _table(charset: str) -> str:
    if charset in _PATCHED:
        codec, own = _PATCHED[charset]
        characters = [bytes([code]).decode(codec, "replace").replace("\ufffd", _HOLE) for code in range(256)]
        return "".join(own.get(code, character) for code, character in enumerate(characters))
    if charset in _TABLES:
        last = _TABLES[charset]
        return "".join(map(chr, range(256 - len(last)))) + last
    if charset == "swe7":
        return "".join(_SWE7.get(code, chr(code)) for code in range(127)) + _HOLE * 129
    raise LookupError(f"character set {charset} is not known")


def _by_codec(charset: str, codec: str) -> Decode:
    def decode(raw: bytes) -> str:
        try:
            return raw.decode(codec)
        except UnicodeDecodeError:
            pass  # raised below, because the error holds the value
        raise ValueError(f"bytes that are not valid {charset}")

    return decode


def _by_multibyte(charset: str, multibyte: _Multibyte) -> Decode:
    codec, differs, split, own = multibyte

    def decode(raw: bytes) -> str:
        try:
            if not differs(raw):
                return raw.decode(codec)
            text = "".join(own[part] if part in own else part.decode(codec) for part in split(raw))
        except UnicodeDecodeError:
            text = _HOLE  # raised below, because the error holds the value
        if _HOLE in text:
            raise ValueError(f"bytes that are not valid {charset}")
        return text

    return decode


def _ucs2(raw: bytes) -> str:
    text = _by_codec("ucs2", "utf-16-be")(raw)
    if 2 * len(text) != len(raw):
        raise ValueError("bytes that are not valid ucs2")
    return text


def to_utf8(charset: str) -> Callable[[bytes], bytes] | None:
    """Return what makes bytes of that set UTF-8; None where they are already. Raises as `decoder` does."""
    if charset in AS_UTF8:
        return None
    decode = decoder(charset)
    if charset in _OTHER_ASCII:
        return lambda raw: decode(raw).encode()
    return lambda raw: raw if raw.isascii() else decode(raw).encode()


def lenient(charset: str, raw: bytes) -> str:
    """Decode a statement's text: what is not valid in the set (literals of bytes) as backslash escapes."""
    try:
        return decoder(charset)(raw)
    except (ValueError, LookupError):
        return raw.decode("utf-8", "backslashreplace")
