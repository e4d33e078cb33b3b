// Writes one version of a rank state into a folder of slime's versions, as a delta of the previous
// version or as a full checkpoint. slime_publisher.h decides which.
//
// A delta's tensors are read at exactly that version, each by one of several threads. Their values
// before it are computed from them by undoing the retained steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/formats/slime_delta/full_version.h"
#include "common/formats/slime_delta/payload.h"
#include "common/formats/slime_delta/version_writer.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: for one rank state; each write may be tried again after an error. Threads: one at a
// time.
class SlimeWriter {
 public:
  struct Options {
    std::string root;
    slime::Encoding encoding = slime::Encoding::kXor;
    slime::ChecksumFormat checksum = slime::ChecksumFormat::kXxh3;
    uint64_t full_shard_bytes_max = limits::kSlimeShardBytesDefault;
    uint64_t delta_shard_bytes_max = limits::kSlimePublishShardBytes;
    ThreadPool* pool = nullptr;  // its threads also encode deltas; null: there is none
    // Files to write beside the weights of a full checkpoint (FullVersionOptions).
    std::map<std::string, std::vector<std::byte>> side_files = {};
  };

  // How a version becomes visible.
  struct Publication {
    // Called before readers, or rank 0, see anything; its error is returned. May be empty.
    std::function<Status()> may_publish = nullptr;
    // Not empty: writes this rank's part of the version, by a writer of this name, for JoinParts
    // (version_parts.h). Readers do not see it.
    std::string part = {};
  };

  // FAILED_PRECONDITION: the format cannot hold the rank's weights: a tensor is only partly on this
  // rank, has a type that safetensors does not know, or is too large for the encoding; the message
  // names it. `wanted` is called repeatedly; if it returns false, a write ends with CANCELLED.
  static Result<SlimeWriter> Create(FileSystem& files, const Options& options, RankStatePtr state,
                                    std::function<bool()> wanted);

  // These publish the version and return the number of bytes written for its tensors. ABORTED: it
  // can no longer be read. ALREADY_EXISTS: it is published already. Other errors come from the file
  // system, or from damage in our memory, if damaged().
  //
  // WriteDelta needs a `version` whose base is the version directly before it.
  Result<uint64_t> WriteDelta(const RetainedVersionPtr& version, const Publication& publication);
  // Writes version 1 as a delta of `base`, from which readers start as version 0. It has an entry
  // for every tensor, so that readers prove all their tensors. ABORTED also if `base` has changed
  // or cannot be read.
  Result<uint64_t> WriteFromBase(const RetainedVersionPtr& version,
                                 const safetensors::Checkpoint& base,
                                 const Publication& publication);
  Result<uint64_t> WriteFull(const RetainedVersionPtr& version, const Publication& publication);

  // Returns whether the last write failed because data read from our own memory is damaged.
  bool damaged() const { return damaged_; }

  const RankStatePtr& state() const { return state_; }

 private:
  // A delta of the version before, or of `base`: an entry for each of `shards`.
  Result<uint64_t> WriteEntries(const RetainedVersionPtr& version,
                                const std::vector<uint32_t>& shards,
                                const safetensors::Checkpoint* base,
                                const Publication& publication);
  // Reads tensors and adds them to `writer`. DATA_LOSS: data read from our own memory is damaged.
  Status AddTensors(const RetainedVersionPtr& version, const std::vector<uint32_t>& shards,
                    const safetensors::Checkpoint* base, slime::VersionWriter& writer) const;
  SlimeWriter(FileSystem& files, Options options, RankStatePtr state, slime::ShardPlan plan,
              std::function<bool()> wanted);
  std::map<std::string, std::string> Extra() const;
  std::string WriterName(const Publication& publication) const;

  FileSystem& files_;
  Options options_;
  RankStatePtr state_;
  slime::ShardPlan plan_;  // of a full checkpoint
  std::function<bool()> wanted_;
  bool damaged_ = false;
};

}  // namespace dws
