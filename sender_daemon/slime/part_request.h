// What rank 0's sender asks the other ranks' senders to write into a folder of slime's versions,
// and the names of what they write. The senders of a trainer with several ranks agree by files in
// the folder alone. Pure.
//
//   1. Rank 0 (parts_leader.h) chooses a version, and says in .dws_request which one, and whether
//      as a delta or in full. Each request is an attempt with a number of its own.
//   2. Every rank writes the tensors that it has as a part (version_parts.h): a folder that readers
//      ignore, whose name has the request's stream, epoch and attempt, and the rank's own number
//      and epoch. A rank that cannot writes the reason into a file named `cannot` there instead.
//   3. When all parts are complete, rank 0 joins and publishes them.
//   4. An attempt that fails is never resumed: rank 0 removes all parts, and asks again.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/formats/slime_delta/payload.h"

namespace dws {

inline constexpr const char* kPartRequestFile = ".dws_request";
inline constexpr const char* kPartRefusedFile = "cannot";
inline constexpr uint64_t kPartRequestBytesMax = 512;
inline constexpr uint64_t kPartRefusalBytesMax = 4096;
inline constexpr size_t kPartRanksNamedMax = 5;  // in a message
// A rank that is waited for so long is reported as missing.
inline constexpr std::chrono::seconds kPartWaitMax{10};
// The first wait between two looks at the folder; OfferLoop::Options::soon.
inline constexpr std::chrono::milliseconds kPartPollMin{20};

enum class PartKind : uint8_t {
  kNone,   // nothing is asked for: all that is published is in the folder
  kFull,   // all tensors
  kDelta,  // of the version before
  kBase,   // a delta of the base checkpoint, with an entry for every tensor
};

struct PartRequest {
  std::string stream;  // SlimeStreamName
  uint64_t epoch = 0;  // rank 0's
  uint64_t attempt = 0;
  uint32_t world_size = 1;
  uint64_t version = 0;
  PartKind kind = PartKind::kNone;
  slime::Encoding encoding = slime::Encoding::kXor;
  slime::ChecksumFormat checksum = slime::ChecksumFormat::kXxh3;
  uint64_t published = 0;  // the newest version in the folder

  friend bool operator==(const PartRequest&, const PartRequest&) = default;
};

// One line of text.
std::string MakePartRequest(const PartRequest& request);
// DATA_LOSS: `text` is none. `what` names the file in the message.
Result<PartRequest> ParsePartRequest(std::string_view text, const std::string& what);

// The writer (VersionWriteOptions) of a part that answers `request`.
std::string PartWriterName(const PartRequest& request, uint32_t rank, uint64_t rank_epoch);

// The rank that wrote a part, and its epoch.
struct PartOwner {
  uint32_t rank = 0;
  uint64_t epoch = 0;
};
// Returns whose part the folder of that name is; nullopt: it does not answer `request`.
std::optional<PartOwner> ParsePartFolder(const PartRequest& request, std::string_view name);

}  // namespace dws
