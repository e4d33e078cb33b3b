"""The naive decoder agrees with the C++ codec on every golden file and on the known answers of the digest."""

import json
import os
import struct
import unittest

import xxhash

from tests.golden import naive_decoder

DIRECTORY = "tests/golden/delta_v1"
MASK64 = (1 << 64) - 1


def random_bytes(seed, size):
    """SplitMix64, which the C++ tests use for their states."""
    words = []
    for _ in range(-(-size // 8)):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK64
        x = seed
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK64
        words.append(x ^ (x >> 31))
    return struct.pack(f"<{len(words)}Q", *words)[:size]


class NaiveDecoderTest(unittest.TestCase):

    def test_every_golden_object_decodes_to_its_state_or_is_refused_with_its_code(self):
        with open(os.path.join(DIRECTORY, "cases.json"), encoding="utf-8") as file:
            cases = json.load(file)
        self.assertGreater(len(cases), 30)
        files = {name for name in os.listdir(DIRECTORY) if name.endswith(".dws")}
        self.assertEqual(files, {case["file"] for case in cases})
        for case in cases:
            with self.subTest(case["file"]):
                self.check(case)

    def check(self, case):
        with open(os.path.join(DIRECTORY, case["file"]), "rb") as file:
            data = file.read()
        slices = naive_decoder.rank_slices(case["layout"])
        base = [random_bytes(case["seed"] + i, part.elements * part.element_bytes)
                for i, part in enumerate(slices)]
        try:
            state = naive_decoder.decode_object(data, case["layout"], base, case["compare_base"])
        except naive_decoder.FormatError as error:
            self.assertEqual(error.code, case["outcome"], str(error))
            return
        self.assertEqual(case["outcome"], "OK")
        self.assertEqual([xxhash.xxh3_64_hexdigest(part) for part in state], case["after_xxh3"])

    def test_digests_equal_the_known_answers(self):
        # tests/common/model/digest_test.cc reads the same file.
        with open("tests/golden/digest_known_answers.json", encoding="utf-8") as file:
            answers = json.load(file)
        self.assertGreater(len(answers), 5)
        for answer in answers:
            words = naive_decoder.words_of(bytes.fromhex(answer["bytes"]))
            lanes = naive_decoder.digest_words(words, answer["first_word"])
            self.assertEqual("%016x%016x" % lanes, answer["digest"])

    def test_ordinals_are_their_own_inverse_at_8_and_16_bits(self):
        for dtype in ("U8", "F8_E4M3", "I16", "BF16"):
            count = 1 << naive_decoder.DTYPES[dtype][1] * 8
            ordinals = [naive_decoder.ordinal(bits, dtype) for bits in range(count)]
            self.assertEqual(sorted(ordinals), list(range(count)))
            self.assertTrue(all(naive_decoder.ordinal(o, dtype) == i for i, o in enumerate(ordinals)))


if __name__ == "__main__":
    unittest.main()
