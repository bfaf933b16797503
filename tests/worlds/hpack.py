"""Header compression of HTTP/2 (RFC 7541): reads all of it, and writes the plainest form.

What is written is a literal without indexing and without Huffman's code, which every peer reads.
"""

STATIC = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|"
    ":status=200|:status=204|:status=206|:status=304|:status=400|:status=404|:status=500|accept-charset|"
    "accept-encoding=gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|"
    "allow|authorization|cache-control|content-disposition|content-encoding|content-language|"
    "content-length|content-location|content-range|content-type|cookie|date|etag|expect|expires|from|"
    "host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|"
    "location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|"
    "server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)
"""The static table of appendix A."""

LENGTHS = """\
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 6 10 10 12
13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7
7 7 8 7 8 13 19 13 14 6 15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 20 22 20 20 22
22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 22 21 20 22 22 23 23 21 23
22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 26 26 20 19 22 23 22 25 26 26 26 27 27
26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26
27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 30
"""
"""Bits of each byte's code, and of the end's, in Huffman's code of appendix B. It is canonical, so lengths
say all."""

ENTRY = 32
"""Bytes that an entry of the dynamic table counts beside its name and value."""


class Malformed(Exception):
    """A header block that RFC 7541 does not allow."""


def code_of_huffman():
    """Returns the byte of each code, by (bits, code)."""
    lengths = [int(word) for word in LENGTHS.split()]
    found, code, bits = {}, 0, 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: (lengths[symbol], symbol)):
        code <<= lengths[symbol] - bits
        bits = lengths[symbol]
        found[bits, code] = symbol
        code += 1
    return found


HUFFMAN = code_of_huffman()
INDEXED = [tuple((entry + "=").split("=")[:2]) for entry in STATIC.split("|")]


def expand(coded):
    """Returns the bytes of a string in Huffman's code."""
    out, code, bits = bytearray(), 0, 0
    for byte in coded:
        for shift in range(7, -1, -1):
            code, bits = code << 1 | byte >> shift & 1, bits + 1
            symbol = HUFFMAN.get((bits, code))
            if symbol is not None:
                if symbol > 255:
                    raise Malformed("the end of the string is coded")
                out.append(symbol)
                code, bits = 0, 0
    if bits > 7 or code != (1 << bits) - 1:
        raise Malformed("padding that is not of ones")
    return bytes(out)


def integer(value, prefix, flags=0):
    """Returns a number with a prefix of so many bits, behind `flags`."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([flags | value])
    out = bytearray([flags | most])
    value -= most
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def encode(fields):
    """Returns the header block of (name, value) pairs."""
    out = bytearray()
    for name, value in fields:
        out.append(0)
        for word in (name.encode("latin-1"), value.encode("latin-1")):
            out += integer(len(word), 7) + word
    return bytes(out)


class Decoder:
    """Reads header blocks of one direction of one connection, in order."""

    def __init__(self, most=4096):
        self.dynamic, self.most = [], most

    def decode(self, block):
        """Returns the (name, value) pairs of a header block."""
        self.block, self.at = block, 0
        fields = []
        try:
            while self.at < len(block):
                fields += self.field(block[self.at])
        except IndexError:
            raise Malformed("a header block that is cut off") from None
        return fields

    def field(self, first):
        """Returns the pair that begins here, in a list; an empty one for a change of the table's size."""
        if first & 0x80:
            return [self.entry(self.number(7))]
        if first & 0xE0 == 0x20:
            self.most = self.number(5)
            self.evict()
            return []
        kept = first & 0x40
        index = self.number(6 if kept else 4)
        name = self.entry(index)[0] if index else self.string()
        pair = (name, self.string())
        if kept:
            self.dynamic.insert(0, pair)
            self.evict()
        return [pair]

    def entry(self, index):
        if index == 0:
            raise Malformed("entry 0")
        return (INDEXED + self.dynamic)[index - 1]

    def evict(self):
        while (
            self.dynamic and sum(len(name) + len(value) + ENTRY for name, value in self.dynamic) > self.most
        ):
            self.dynamic.pop()

    def number(self, prefix):
        most = (1 << prefix) - 1
        value = self.block[self.at] & most
        self.at += 1
        if value < most:
            return value
        for shift in range(0, 28, 7):
            byte = self.block[self.at]
            self.at += 1
            value += (byte & 127) << shift
            if not byte & 128:
                return value
        raise Malformed("a number that is too long")

    def string(self):
        coded = self.block[self.at] & 0x80
        length = self.number(7)
        word = self.block[self.at : self.at + length]
        if len(word) < length:
            raise Malformed("a string that is cut off")
        self.at += length
        return (expand(word) if coded else bytes(word)).decode("latin-1")
