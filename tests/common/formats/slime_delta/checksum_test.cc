#include "common/formats/slime_delta/digest/checksum.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"

namespace dws::slime {
namespace {

// BLAKE3's official test vectors, their first 32 bytes: the input's bytes count from 0 to 250
// repeatedly.
const std::vector<std::pair<size_t, std::string>> kBlake3Vectors = {
    {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
    {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
    {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
    {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
    {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
    {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
    {2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"},
    {3072, "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2"},
    {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"},
    {4096, "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969"},
    {4097, "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995"},
    {5120, "9cadc15fed8b5d854562b26a9536d9707cadeda9b143978f319ab34230535833"},
    {5121, "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff"},
    {6144, "3e2e5b74e048f3add6d21faab3f83aa44d3b2278afb83b80b3c35164ebeca205"},
    {6145, "f1323a8631446cc50536a9f705ee5cb619424d46887f3c376c695b70e0f0507f"},
    {7168, "61da957ec2499a95d6b8023e2b0e604ec7f6b50e80a9678b89d2628e99ada77a"},
    {7169, "a003fc7a51754a9b3c7fae0367ab3d782dccf28855a03d435f8cfe74605e7817"},
    {8192, "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63"},
    {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b"},
    {16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"},
    {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
    {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
};

TEST_CASE("blake3 gives the official test vectors", "[slime]") {
  for (const auto& [size, digest] : kBlake3Vectors) {
    INFO(size << " bytes");
    std::vector<std::byte> input(size);
    for (size_t i = 0; i < size; ++i) input[i] = std::byte(i % 251);
    CHECK(ChecksumText(ChecksumFormat::kBlake3, input) == digest);
  }
}

TEST_CASE("xxh3-128 is in canonical form and adler32 has eight digits", "[slime]") {
  // Made with xxhsum -H2 and zlib.adler32.
  CHECK(ChecksumText(ChecksumFormat::kXxh3, {}) == "99aa06d3014798d86001c324468d497f");
  CHECK(ChecksumText(ChecksumFormat::kXxh3, AsBytes("abc")) == "06b05ab6733a618578af5f94892f3950");
  CHECK(ChecksumText(ChecksumFormat::kAdler32, {}) == "00000001");
  CHECK(ChecksumText(ChecksumFormat::kAdler32, AsBytes("Wikipedia")) == "11e60398");
}

TEST_CASE("a checksum in pieces is that of the whole, with every instruction set", "[slime]") {
  std::mt19937_64 random(5);
  std::vector<std::byte> input(70'001);
  for (std::byte& byte : input) byte = std::byte(random() & 0xFF);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{240}, size_t{241}, size_t{1024}, size_t{5000}, input.size()}) {
    INFO(size << " bytes");
    const ByteSpan bytes = ByteSpan(input).first(size);
    for (const auto format :
         {ChecksumFormat::kXxh3, ChecksumFormat::kBlake3, ChecksumFormat::kAdler32}) {
      Checksum pieces(format);
      for (size_t at = 0; at < size;) {
        const size_t piece = std::min<size_t>(1 + random() % 3000, size - at);
        pieces.Update(bytes.subspan(at, piece));
        at += piece;
      }
      CHECK(pieces.Text() == ChecksumText(format, bytes));
    }
    Xxh3 portable(InstructionSet::kPortable);
    Xxh3 fastest(MachineInstructionSet());
    portable.Update(bytes);
    fastest.Update(bytes);
    CHECK(portable.Digest() == fastest.Digest());
  }
}

TEST_CASE("checksum formats are found by name and texts are checked for their form", "[slime]") {
  for (const char* const name : {"xxh3-128", "blake3", "adler32"}) {
    const auto format = ChecksumFormatNamed(name);
    REQUIRE(format.has_value());
    CHECK(NameOf(*format) == name);
    std::string text = ChecksumText(*format, AsBytes("x"));
    CHECK(IsChecksumText(*format, text));
    CHECK_FALSE(IsChecksumText(*format, text + "0"));
    CHECK_FALSE(IsChecksumText(*format, ""));
    text[0] = 'F';
    CHECK_FALSE(IsChecksumText(*format, text));
  }
  CHECK_FALSE(ChecksumFormatNamed("md5").has_value());
}

}  // namespace
}  // namespace dws::slime
