"""Tests of the header compression against the examples of RFC 7541, appendix C."""

import unittest

from .hpack import Decoder, Malformed, encode, expand, integer


class Numbers(unittest.TestCase):
    def test_examples_of_c_1(self):
        self.assertEqual(
            (integer(10, 5), integer(1337, 5), integer(42, 8)), (b"\x0a", b"\x1f\x9a\x0a", b"\x2a")
        )

    def test_a_number_is_read_as_it_is_written(self):
        for value in (0, 126, 127, 128, 254, 255, 1337, 70_000):
            decoder = Decoder()
            decoder.block, decoder.at = integer(value, 7), 0
            self.assertEqual(decoder.number(7), value)


class Blocks(unittest.TestCase):
    def test_requests_of_c_4_with_huffman_and_a_table(self):
        decoder = Decoder()
        first = decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff"))
        second = decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf"))
        third = decoder.decode(bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"))
        common = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
        self.assertEqual(first, common)
        self.assertEqual(second, common + [("cache-control", "no-cache")])
        self.assertEqual(third[1:3], [(":scheme", "https"), (":path", "/index.html")])
        self.assertEqual(third[-1], ("custom-key", "custom-value"))

    def test_answers_of_c_6_evict_what_is_too_much(self):
        decoder = Decoder(most=256)
        decoder.decode(
            bytes.fromhex(
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad17"
                "1863c78f0b97c8e9ae82ae43d3"
            )
        )
        second = decoder.decode(bytes.fromhex("4883640effc1c0bf"))
        self.assertEqual(second[0], (":status", "307"))
        self.assertEqual(second[3], ("location", "https://www.example.com"))
        self.assertEqual(len(decoder.dynamic), 4)

    def test_what_is_encoded_is_read_back(self):
        fields = [(":status", "200"), ("content-type", "application/grpc"), ("x-long", "y" * 300)]
        self.assertEqual(Decoder().decode(encode(fields)), fields)

    def test_a_size_of_none_forgets_all(self):
        decoder = Decoder()
        decoder.decode(b"\x40\x01a\x01b")
        self.assertEqual(decoder.decode(b"\x20"), [])
        self.assertEqual(decoder.dynamic, [])

    def test_what_is_malformed_is_said(self):
        for block in (b"\x80", b"\xff\xff", b"\x00\x05ab", b"\xbe", b"\x7f\xff\xff\xff\xff\xff\x01"):
            with self.assertRaises(Malformed):
                Decoder().decode(block)
        with self.assertRaises(Malformed):
            expand(b"\x00")


if __name__ == "__main__":
    unittest.main()
