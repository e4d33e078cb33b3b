// Rank 0's side of writing a version from the parts of all ranks (part_request.h): asks for them,
// and says when all are there. slime_publisher.h chooses the versions and joins the parts.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/version_parts.h"
#include "common/model/weight_version.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/slime/part_request.h"

namespace dws {

// Lifecycle: for one rank state. Ask, then Parts until it returns them or fails, then Close.
// Threads: one at a time.
class PartsLeader {
 public:
  struct Options {
    std::string root;
    slime::Encoding encoding = slime::Encoding::kXor;
    slime::ChecksumFormat checksum = slime::ChecksumFormat::kXxh3;
    std::chrono::milliseconds wait_max = kPartWaitMax;
  };

  // `files` must outlive it.
  PartsLeader(FileSystem& files, Options options, const RankState& state);

  // Asks all ranks for their parts of a version, as attempt number `attempt`, which must be new.
  // Errors of the file system.
  Status Ask(WeightVersion version, PartKind kind, uint64_t attempt, uint64_t published);
  // Says that nothing is asked for. Writes only if `published` is news.
  Status Tell(uint64_t published);
  // The writer of rank 0's own part.
  std::string own_part() const { return PartWriterName(request_, 0, self_epoch_); }

  // Returns the parts of all ranks; nullopt: not all are complete yet. UNAVAILABLE: no part has
  // grown for longer than wait_max; the message names the ranks whose parts are missing. Call it
  // again after both. ABORTED: a rank cannot write its part; the message says why.
  Result<std::optional<std::vector<slime::VersionPart>>> Parts();
  // Returns whether parts are asked for and not closed.
  bool open() const { return request_.kind != PartKind::kNone; }
  void Close() { request_.kind = PartKind::kNone; }

 private:
  Status Write(const PartRequest& request);
  // Reads the parts that have become complete.
  Status Look();

  FileSystem& files_;
  const Options options_;
  const std::string stream_;
  const uint64_t self_epoch_;
  const uint32_t world_size_;
  PartRequest request_;
  std::optional<PartRequest> written_;
  std::map<uint32_t, slime::VersionPart> complete_;  // by rank
  size_t seen_ = 0;                                  // files of parts that are not complete
  TimePoint progress_at_;                            // asked, or a part has grown
};

}  // namespace dws
