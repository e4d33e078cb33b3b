#include "common/formats/slime_delta/payload.h"

#include <zstd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "common/formats/slime_delta/entry_builder.h"
#include "tests/common/formats/raw_file.h"

namespace dws::slime {
namespace {

using Catch::Contains;
using dws::testing::Bytes;
using dws::testing::RandomBytes;

constexpr Encoding kAll[] = {Encoding::kXor, Encoding::kOverwrite, Encoding::kRuns};

// `before` with about `density` of its bytes changed.
Bytes Change(std::mt19937_64& random, const Bytes& before, double density) {
  Bytes after = before;
  std::bernoulli_distribution changes(density);
  for (std::byte& byte : after) {
    if (changes(random)) byte = std::byte(random() & 0xFF);
  }
  return after;
}

std::string Decoded(Encoding encoding, const Bytes& entry, uint64_t tensor_bytes) {
  const auto payload = DecodeEntry(encoding, entry, tensor_bytes);
  return payload.ok() ? "accepted" : ToString(payload.status());
}

std::string Applied(Encoding encoding, const Bytes& payload, size_t tensor_bytes) {
  Bytes tensor(tensor_bytes, std::byte{0x55});
  const Status status = ApplyPayload(encoding, payload, tensor);
  if (!status.ok()) CHECK(tensor == Bytes(tensor_bytes, std::byte{0x55}));
  return status.ok() ? "accepted" : ToString(status);
}

template <typename Number>
Bytes Sparse(Number count, const std::vector<Number>& positions, size_t values) {
  Bytes payload(sizeof(Number) * (1 + positions.size()) + values, std::byte{1});
  StoreLe(payload.data(), count);
  for (size_t i = 0; i < positions.size(); ++i) {
    StoreLe(payload.data() + sizeof(Number) * (1 + i), positions[i]);
  }
  return payload;
}

TEST_CASE("an entry built of pieces brings the tensor from before to after", "[slime]") {
  std::mt19937_64 random(7);
  for (const size_t size : {1, 300, 70'001, 600'000}) {
    for (const double density : {0.0, 0.01, 1.0}) {
      const Bytes before = RandomBytes(random, size);
      const Bytes after = Change(random, before, density);
      for (const Encoding encoding : kAll) {
        INFO(NameOf(encoding) << " of " << size << " bytes, density " << density);
        auto builder = EntryBuilder::Create(encoding, ChecksumFormat::kXxh3, size);
        REQUIRE(builder.ok());
        for (size_t at = 0; at < size;) {
          const size_t piece = std::min(size - at, 1 + random() % (size / 2 + 1));
          builder->Add(ByteSpan(before).subspan(at, piece), ByteSpan(after).subspan(at, piece));
          at += piece;
        }
        const auto entry = builder->Finish();
        REQUIRE(entry.ok());
        REQUIRE(entry->has_value() == (before != after));
        if (!entry->has_value()) continue;
        CHECK((*entry)->digest == ChecksumText(ChecksumFormat::kXxh3, after));
        const auto payload = DecodeEntry(encoding, (*entry)->bytes, size);
        REQUIRE(payload.ok());
        Bytes tensor = before;
        REQUIRE(ApplyPayload(encoding, *payload, tensor).ok());
        CHECK(tensor == after);
      }
    }
  }
}

TEST_CASE("every encoding brings any tensor from before to after", "[slime]") {
  std::mt19937_64 random(1);
  for (const size_t size : {0, 1, 7, 8, 9, 300, 4096, 70'001}) {
    for (const double density : {0.0, 0.001, 0.02, 0.5, 1.0}) {
      const Bytes before = RandomBytes(random, size);
      const Bytes after = Change(random, before, density);
      for (const Encoding encoding : kAll) {
        INFO(NameOf(encoding) << " of " << size << " bytes, density " << density);
        const auto payload = EncodePayload(encoding, before, after);
        REQUIRE(payload.ok());
        const Bytes entry = CompressEntry(*payload);
        const auto decoded = DecodeEntry(encoding, entry, size);
        INFO(decoded.status());
        REQUIRE(decoded.ok());
        CHECK(*decoded == *payload);
        Bytes tensor = before;
        REQUIRE(ApplyPayload(encoding, *decoded, tensor).ok());
        CHECK(tensor == after);
      }
    }
  }
}

TEST_CASE("an overwrite payload has exactly the bytes that the format defines", "[slime]") {
  const Bytes before = {std::byte{1}, std::byte{2}, std::byte{3}};
  const Bytes after = {std::byte{1}, std::byte{9}, std::byte{8}};
  const auto payload = EncodePayload(Encoding::kOverwrite, before, after);
  REQUIRE(payload.ok());
  CHECK(*payload == Bytes{std::byte{2},
                          {},
                          {},
                          {},
                          std::byte{1},
                          {},
                          {},
                          {},
                          std::byte{2},
                          {},
                          {},
                          {},
                          std::byte{9},
                          std::byte{8}});
}

TEST_CASE("runs of one byte that touch are read again, though no payload is longer", "[slime]") {
  std::mt19937_64 random(6);
  const Bytes after = RandomBytes(random, 1000);
  std::vector<ByteRun> single;
  for (uint64_t i = 0; i < after.size(); ++i) single.push_back({i, 1});
  const Bytes payload = EncodeRuns(after, single);
  CHECK(payload.size() == 3 * after.size());
  const auto decoded = DecodeEntry(Encoding::kRuns, CompressEntry(payload), after.size());
  REQUIRE(decoded.ok());
  Bytes tensor(after.size());
  REQUIRE(ApplyPayload(Encoding::kRuns, *decoded, tensor).ok());
  CHECK(tensor == after);
}

TEST_CASE("applying runs again, or over a half-changed tensor, gives the same bytes", "[slime]") {
  std::mt19937_64 random(3);
  const Bytes before = RandomBytes(random, 10'000);
  const Bytes after = Change(random, before, 0.1);
  const auto payload = EncodePayload(Encoding::kRuns, before, after);
  REQUIRE(payload.ok());
  for (int round = 0; round < 20; ++round) {
    Bytes tensor = before;
    for (size_t i = 0; i < tensor.size(); ++i) {
      if ((random() & 1) != 0) tensor[i] = after[i];
    }
    REQUIRE(ApplyPayload(Encoding::kRuns, *payload, tensor).ok());
    CHECK(tensor == after);
  }
}

TEST_CASE("xor_sparse is read", "[slime]") {
  Bytes tensor(6, std::byte{0xF0});
  REQUIRE(ApplyPayload(Encoding::kXorSparse, Sparse<uint64_t>(2, {5, 0}, 2), tensor).ok());
  CHECK(tensor[0] == std::byte{0xF1});
  CHECK(tensor[5] == std::byte{0xF1});
  CHECK(tensor[1] == std::byte{0xF0});
  CHECK_FALSE(EncodePayload(Encoding::kXorSparse, tensor, tensor).ok());
}

TEST_CASE("sparse payloads with a wrong count or positions outside the tensor are refused",
          "[slime]") {
  CHECK_THAT(Applied(Encoding::kOverwrite, Bytes(3), 8), Contains("has no count"));
  CHECK_THAT(Applied(Encoding::kXorSparse, Bytes(7), 8), Contains("has no count"));
  CHECK_THAT(Applied(Encoding::kOverwrite, Sparse<uint32_t>(2, {1}, 1), 8),
             Contains("9 bytes, expected 14"));
  CHECK_THAT(Applied(Encoding::kOverwrite, Sparse<uint32_t>(1, {1, 2}, 2), 8),
             Contains("14 bytes, expected 9"));
  CHECK_THAT(Applied(Encoding::kOverwrite, Sparse<uint32_t>(2, {1, 8}, 2), 8),
             Contains("change 1 is at byte 8 of a tensor of 8 bytes"));
  CHECK_THAT(Applied(Encoding::kXorSparse, Sparse<uint64_t>(~uint64_t{0}, {1}, 1), 8),
             Contains("18446744073709551615 changes for a tensor of 8 bytes"));
  CHECK_THAT(Applied(Encoding::kXorSparse, Sparse<uint64_t>(1, {~uint64_t{0}}, 1), 8),
             Contains("is at byte 18446744073709551615"));
  CHECK_THAT(Applied(Encoding::kXor, Bytes(7), 8), Contains("an xor of 7 bytes"));
}

TEST_CASE("runs that are cut off or reach outside the tensor are refused", "[slime]") {
  const auto payload = [](std::initializer_list<int> bytes) {
    Bytes made;
    for (const int byte : bytes) made.push_back(std::byte(byte));
    return made;
  };
  CHECK(Applied(Encoding::kRuns, payload({7, 1, 9}), 8) == "accepted");
  CHECK_THAT(Applied(Encoding::kRuns, payload({8, 1, 9}), 8), Contains("of a tensor of 8"));
  CHECK_THAT(Applied(Encoding::kRuns, payload({0, 2, 9}), 8), Contains("cut off"));
  CHECK_THAT(Applied(Encoding::kRuns, payload({0, 0}), 8), Contains("cut off"));
  CHECK_THAT(Applied(Encoding::kRuns, payload({0x80}), 8), Contains("cut off"));
  CHECK_THAT(Applied(Encoding::kRuns, payload({0, 1, 9, 7, 1, 9}), 8), Contains("after byte 1"));
  CHECK_THAT(
      Applied(Encoding::kRuns, payload({255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1, 9}), 8),
      Contains("cut off"));
}

TEST_CASE("an entry that is not one valid frame of a possible size is refused", "[slime]") {
  const Bytes sound = CompressEntry(Bytes(1000));
  CHECK(Decoded(Encoding::kXor, sound, 1000) == "accepted");
  CHECK_THAT(Decoded(Encoding::kXor, sound, 999),
             Contains("an xor payload of 1000 bytes") || Contains("a xor payload of 1000 bytes"));
  CHECK_THAT(Decoded(Encoding::kOverwrite, sound, 100), Contains("DATA_LOSS"));
  CHECK_THAT(Decoded(Encoding::kXorSparse, sound, 100), Contains("DATA_LOSS"));
  CHECK_THAT(Decoded(Encoding::kRuns, sound, 100), Contains("DATA_LOSS"));
  CHECK_THAT(Decoded(Encoding::kXor, {}, 0), Contains("expected one zstd frame"));
  Bytes twice = sound;
  twice.insert(twice.end(), sound.begin(), sound.end());
  CHECK_THAT(Decoded(Encoding::kXor, twice, 1000), Contains("expected one zstd frame"));
  CHECK_THAT(Decoded(Encoding::kXor, Bytes(sound.begin(), sound.end() - 1), 1000),
             Contains("expected one zstd frame"));
  Bytes damaged = CompressEntry(Bytes(1000, std::byte{7}));
  damaged.back() ^= std::byte{0xFF};
  CHECK(Decoded(Encoding::kXor, damaged, 1000) != "");
}

TEST_CASE("a frame that does not state its size is refused", "[slime]") {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  const Bytes payload(100);
  Bytes entry(ZSTD_compressBound(payload.size()));
  entry.resize(ZSTD_compress2(context, entry.data(), entry.size(), payload.data(), payload.size()));
  ZSTD_freeCCtx(context);
  CHECK_THAT(Decoded(Encoding::kXor, entry, 100), Contains("states its content size"));
}

TEST_CASE("a decompression bomb is refused before anything is allocated", "[slime]") {
  // A frame header that states 2^60 bytes, and an empty last block.
  Bytes bomb(16);
  StoreLe<uint32_t>(bomb.data(), ZSTD_MAGICNUMBER);
  bomb[4] = std::byte{0xE0};  // single segment, 8 bytes of size
  StoreLe<uint64_t>(bomb.data() + 5, uint64_t{1} << 60);
  bomb[13] = std::byte{1};
  CHECK_THAT(Decoded(Encoding::kXor, bomb, 1000),
             Contains("1152921504606846976 bytes for a tensor"));
}

TEST_CASE("overwrite refuses tensors above 4 GiB because its numbers would wrap", "[slime]") {
  const Bytes entry = CompressEntry(Sparse<uint32_t>(1, {0}, 1));
  CHECK(Decoded(Encoding::kOverwrite, entry, uint64_t{1} << 32) == "accepted");
  CHECK_THAT(Decoded(Encoding::kOverwrite, entry, (uint64_t{1} << 32) + 1),
             Contains("INVALID_ARGUMENT"));
  // Never read, so it needs no memory.
  const Bytes one(1);
  const ByteSpan large(one.data(), (uint64_t{1} << 32) + 1);
  CHECK_THAT(ToString(EncodePayload(Encoding::kOverwrite, large, large).status()),
             Contains("use xor"));
}

TEST_CASE("arbitrary payloads never write outside their tensor", "[slime]") {
  std::mt19937_64 random(4);
  for (int round = 0; round < 50'000; ++round) {
    Bytes payload = RandomBytes(random, random() % 60);
    if (payload.size() >= 8 && (random() & 1) != 0) {
      StoreLe<uint64_t>(payload.data(), random() % 8);
    }
    Bytes tensor(random() % 40);
    for (const Encoding encoding :
         {Encoding::kXor, Encoding::kOverwrite, Encoding::kXorSparse, Encoding::kRuns}) {
      static_cast<void>(ApplyPayload(encoding, payload, tensor));
    }
  }
}

}  // namespace
}  // namespace dws::slime
