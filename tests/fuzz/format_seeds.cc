#include "tests/fuzz/format_seeds.h"

#include <vector>

#include "common/base/check.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/safetensors/header.h"
#include "common/formats/slime_delta/payload.h"
#include "common/formats/slime_delta/version_index.h"
#include "common/memory/gradients/outbox.h"
#include "tests/fuzz/seeds.h"

namespace dws::fuzz {
namespace {

using safetensors::FileDType;
using safetensors::TensorBytesView;
using slime::Encoding;
using Bytes = std::vector<std::byte>;

constexpr uint16_t kTensorBytes = 300;
constexpr uint8_t kPatternBytes = 32;

// Headers that are refused, and valid but rare ones.
constexpr const char* kHeaders[] = {
    R"({})",
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}   )",
    R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[3],"data_offsets":[1,4]}})",
    R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
    R"({"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}})",
    R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
    R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
    R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}})",
    R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[4,0]}})",
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})",
    R"({"__metadata__":{"n":1}})",
};

constexpr const char* kIndexes[] = {
    R"({"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00002.safetensors"}})",
    R"({"weight_map":{"a":"../a.safetensors"}})",
    R"({"weight_map":{"a":"a.safetensors","a":"b.safetensors"}})",
    R"({"weight_map":{"a":1},"metadata":[]})",
};

void AddFiles(Seeds& seeds) {
  const Bytes content(96, std::byte{0x3C});
  const auto view = [&](const char* name, FileDType dtype, std::vector<uint64_t> shape) {
    const uint64_t size_bytes = *safetensors::TensorBytes(dtype, shape);
    return TensorBytesView{.name = name,
                           .dtype = dtype,
                           .shape = std::move(shape),
                           .bytes = ByteSpan(content).first(size_bytes)};
  };
  const std::vector<TensorBytesView> all = {
      view("scale", FileDType::kF32, {}), view("q", FileDType::kBF16, {4, 3}),
      view("packed", FileDType::kF4, {2, 2}), view("none", FileDType::kU8, {0}),
      view("w", FileDType::kF8E4M3, {7})};
  for (size_t count = 0; count <= all.size(); ++count) {
    const auto file = safetensors::MakeFile({{"format", "pt"}}, std::span(all).first(count));
    DWS_CHECK(file.ok());
    Bytes input;
    Put(input, uint8_t{0});
    Append(input, *file);
    seeds.Add(input);
  }
}

void AddSafetensors(const std::string& directory) {
  Seeds seeds(directory, "safetensors_fuzz");
  AddFiles(seeds);
  for (const char* const header : kHeaders) {
    Bytes input;
    Put(input, uint8_t{1});
    Put(input, uint16_t{4});
    Append(input, AsBytes(header));
    seeds.Add(input);
  }
  for (const char* const index : kIndexes) {
    Bytes input;
    Put(input, uint8_t{2});
    Append(input, AsBytes(index));
    seeds.Add(input);
  }
}

// The bytes that slime_delta_fuzz reads first; the tensor repeats 32 bytes.
Bytes SlimeHead(uint8_t kind, Encoding encoding) {
  Bytes input;
  Put(input, kind);
  Put(input, static_cast<uint8_t>(encoding));
  Put(input, kTensorBytes);
  Put(input, kPatternBytes);
  for (uint8_t i = 0; i < kPatternBytes; ++i) Put(input, static_cast<uint8_t>(i * 7));
  return input;
}

// Bytes 3 and 250 with xor_sparse, which no writer of ours makes.
Bytes SparsePayload() {
  Bytes payload;
  for (const uint64_t number : {2, 3, 250}) Put(payload, number);
  Put(payload, uint8_t{1});
  Put(payload, uint8_t{0x80});
  return payload;
}

Bytes PayloadOf(Encoding encoding) {
  if (encoding == Encoding::kXorSparse) return SparsePayload();
  const Bytes before(kTensorBytes);
  Bytes after = before;
  for (const size_t at : {3, 4, 5, 140, 298}) after[at] = std::byte{0x11};
  return *slime::EncodePayload(encoding, before, after);
}

void AddPayloads(Seeds& seeds) {
  for (const Encoding encoding :
       {Encoding::kXor, Encoding::kOverwrite, Encoding::kXorSparse, Encoding::kRuns}) {
    const Bytes payload = PayloadOf(encoding);
    Bytes plain = SlimeHead(0, encoding);
    Append(plain, payload);
    seeds.Add(plain);
    Bytes entry = SlimeHead(1, encoding);
    Append(entry, slime::CompressEntry(payload));
    seeds.Add(entry);
    Bytes changes = SlimeHead(2, encoding);
    for (const uint16_t at : {3, 4, 250}) {
      Put(changes, at);
      Put(changes, uint8_t{0x40});
    }
    seeds.Add(changes);
  }
}

void AddSlime(const std::string& directory) {
  Seeds seeds(directory, "slime_delta_fuzz");
  AddPayloads(seeds);
  const auto add_index = [&](std::string_view text) {
    Bytes input;
    Put(input, uint8_t{4});
    Put(input, uint16_t{2});  // the folder's version
    Put(input, uint16_t{1});  // the local version
    Append(input, AsBytes(text));
    seeds.Add(input);
  };
  slime::VersionIndex index{.version = 2,
                            .weight_map = {{"w", "model-00000-of-00001.safetensors"}},
                            .extra = {{"run", "7"}}};
  add_index(*slime::MakeVersionIndex(index));
  for (const auto checksum : {slime::ChecksumFormat::kXxh3, slime::ChecksumFormat::kBlake3,
                              slime::ChecksumFormat::kAdler32}) {
    index.delta = {.base_version = 1, .encoding = Encoding::kOverwrite, .checksum = checksum};
    add_index(*slime::MakeVersionIndex(index));
  }
  add_index("weight_v000002");
  add_index("weight_v2");
}

// An outbox in which three slots are filled, and then filled again.
void AddOutbox(const std::string& directory) {
  Seeds seeds(directory, "outbox_fuzz");
  OutboxHandles handles;
  Result<OutboxWriter> writer =
      OutboxWriter::Create({.slot_count = 4, .data_bytes = 1024}, handles);
  Result<HostRegion> region =
      HostRegion::Map(std::move(handles.region), handles.size_bytes, Access::kReadOnly);
  DWS_CHECK(writer.ok() && region.ok());
  writer->Fill({.slot = 0, .unit = 2, .number = 9, .offset_bytes = 128, .size_bytes = 128});
  writer->Fill({.slot = 1, .unit = 1, .dtype = DType::kF32, .number = 8, .size_bytes = 12});
  writer->Fill({.slot = 3, .unit = 0, .owner = 1, .minibatch = 5, .attempt = 2, .number = 7});
  for (const uint8_t flags : {0, 1, 2, 6, 7}) {
    Bytes input;
    Put(input, flags);
    if ((flags & 1) != 0) Append(input, region->bytes().first(64));
    const ByteSpan slots = region->bytes().subspan(64, 4 * kOutboxSlotBytes);
    Append(input, slots);
    if ((flags & 4) != 0) Append(input, slots);
    seeds.Add(input);
  }
}

}  // namespace

void AddFormats(const std::string& directory) {
  AddOutbox(directory);
  AddSafetensors(directory);
  AddSlime(directory);
}

}  // namespace dws::fuzz
