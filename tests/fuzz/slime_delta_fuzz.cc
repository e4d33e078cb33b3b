// Arbitrary bytes as payloads, compressed entries and version indexes of slime's folders. Payloads
// are refused and nothing is written, or they change the tensor's bytes alone; nothing is larger
// than a payload of such a tensor can be; what we write we read.
#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "common/formats/slime_delta/payload.h"
#include "common/formats/slime_delta/version_index.h"
#include "tests/fuzz/fuzz_input.h"

namespace dws::fuzz {
namespace {

using slime::Encoding;

constexpr size_t kTensorBytesMax = 600;
constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};

// A tensor between guard bytes.
class GuardedTensor {
 public:
  explicit GuardedTensor(ByteSpan content) : bytes_(kGuardBytes, kGuard) {
    for (const std::byte byte : content) bytes_.push_back(byte);
    bytes_.resize(bytes_.size() + kGuardBytes, kGuard);
  }
  MutableByteSpan content() {
    return MutableByteSpan(bytes_).subspan(kGuardBytes, bytes_.size() - 2 * kGuardBytes);
  }
  bool Holds(ByteSpan expected) {
    const MutableByteSpan now = content();
    return std::equal(now.begin(), now.end(), expected.begin(), expected.end());
  }
  void CheckGuards() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    DWS_CHECK(std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes, is_guard));
    DWS_CHECK(std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_guard));
  }

 private:
  Bytes bytes_;
};

Encoding TakeEncoding(FuzzInput& input) { return static_cast<Encoding>(input.Take<uint8_t>() % 4); }

Bytes TakeTensor(FuzzInput& input) {
  return TakeBlock(input, input.Take<uint16_t>() % (kTensorBytesMax + 1));
}

// The size of the longest payload, which changes every byte.
uint64_t LongestPayload(Encoding encoding, uint64_t tensor_bytes) {
  switch (encoding) {
    case Encoding::kXor:
      return tensor_bytes;
    case Encoding::kOverwrite:
      return 4 + 5 * tensor_bytes;
    case Encoding::kXorSparse:
      return 8 + 9 * tensor_bytes;
    case Encoding::kRuns:
      return slime::RunsBytesMax(tensor_bytes);
  }
  return 0;
}

void ApplyAnything(Encoding encoding, const Bytes& before, ByteSpan payload) {
  GuardedTensor tensor(before);
  const Status status = slime::ApplyPayload(encoding, payload, tensor.content());
  tensor.CheckGuards();
  if (!status.ok()) {
    DWS_CHECK(absl::IsDataLoss(status) && tensor.Holds(before));
    return;
  }
  // A second time: differences undo themselves, values stay.
  const Bytes after(tensor.content().begin(), tensor.content().end());
  DWS_CHECK(slime::ApplyPayload(encoding, payload, tensor.content()).ok());
  const bool undone = encoding == Encoding::kXor || encoding == Encoding::kXorSparse;
  DWS_CHECK(tensor.Holds(undone ? before : after));
  tensor.CheckGuards();
}

void DecodeAnything(Encoding encoding, const Bytes& before, ByteSpan entry) {
  const auto payload = slime::DecodeEntry(encoding, entry, before.size());
  if (!payload.ok()) {
    DWS_CHECK(absl::IsDataLoss(payload.status()));
    return;
  }
  DWS_CHECK(payload->size() <= LongestPayload(encoding, before.size()));
  ApplyAnything(encoding, before, *payload);
}

// Checks a payload that we have made: its entry decodes to it, and it makes its change.
void ApplyOurs(Encoding encoding, const Bytes& before, const Bytes& after, const Bytes& payload) {
  const Bytes entry = slime::CompressEntry(payload);
  const auto decoded = slime::DecodeEntry(encoding, entry, before.size());
  DWS_CHECK(decoded.ok() && *decoded == payload);
  GuardedTensor tensor(before);
  DWS_CHECK(slime::ApplyPayload(encoding, *decoded, tensor.content()).ok());
  DWS_CHECK(tensor.Holds(after));
  tensor.CheckGuards();
}

void RoundTrip(Encoding encoding, const Bytes& before, FuzzInput& input) {
  Bytes after = before;
  while (!input.empty() && !after.empty()) {
    after[input.Take<uint16_t>() % after.size()] ^= input.Take<std::byte>();
  }
  const auto payload = slime::EncodePayload(encoding, before, after);
  DWS_CHECK(payload.ok() == (encoding != Encoding::kXorSparse));
  if (payload.ok()) ApplyOurs(encoding, before, after, *payload);
}

void ParseIndex(FuzzInput& input) {
  const uint64_t folder_version = input.Take<uint16_t>();
  const uint64_t local_version = input.Take<uint16_t>();
  const std::string_view text = AsText(input.rest());
  if (const auto version = slime::ParseVersionFolderName(text); version.has_value()) {
    DWS_CHECK(slime::VersionFolderName(*version) == text);
  }
  const auto index = slime::ParseVersionIndex(text, folder_version, "input");
  if (!index.ok()) {
    const Status& status = index.status();
    DWS_CHECK(absl::IsDataLoss(status) || absl::IsUnimplemented(status) ||
              absl::IsResourceExhausted(status));
    return;
  }
  DWS_CHECK(index->version == folder_version);
  if (index->delta.has_value()) DWS_CHECK(index->delta->base_version + 1 == folder_version);
  const auto step = slime::NextStep(local_version, *index);
  if (step.ok() && *step == slime::ChainStep::kApply) {
    DWS_CHECK(index->delta.has_value() && index->delta->base_version == local_version);
  }
  const auto made = slime::MakeVersionIndex(*index);
  DWS_CHECK(made.ok());
  const auto again = slime::ParseVersionIndex(*made, folder_version, "an index of ours");
  DWS_CHECK(again.ok() && again->delta == index->delta && again->extra == index->extra);
  DWS_CHECK(again->weight_map == index->weight_map);
}

void Run(FuzzInput input) {
  const auto kind = input.Take<uint8_t>();
  if (kind % 5 == 4) return ParseIndex(input);
  const Encoding encoding = TakeEncoding(input);
  const Bytes before = TakeTensor(input);
  switch (kind % 5) {
    case 0:
      return ApplyAnything(encoding, before, input.rest());
    case 1:
      return DecodeAnything(encoding, before, input.rest());
    default:
      return RoundTrip(encoding, before, input);
  }
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
