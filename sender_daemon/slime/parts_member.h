// The side of the other ranks in writing a version from the parts of all ranks (part_request.h):
// writes this rank's part of each version that rank 0 asks for. It never touches anything else in
// the folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/model/weight_version.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/slime/base_checkpoint.h"
#include "sender_daemon/slime/part_request.h"
#include "sender_daemon/slime/slime_writer.h"

namespace dws {

// Lifecycle: Step again and again, with the newest state. Threads: one at a time.
class PartsMember {
 public:
  struct Options {
    SlimeWriter::Options writer;
    std::string checkpoint;                // --slime-checkpoint
    const BaseCheckpoint* base = nullptr;  // what it has; outlives it
    std::chrono::milliseconds wait_max = kPartWaitMax;
    std::function<bool()> wanted;
    // Called once for each part for which our own memory is found damaged.
    std::function<void(const RankStatePtr&)> on_damage;
  };
  // A version that is in the folder, with what this rank has written of it.
  struct Published {
    WeightVersion version;
    bool full = false;
    uint64_t bytes = 0;
    bool ours = false;  // this process wrote a part of it
  };

  // `files` must outlive it.
  PartsMember(FileSystem& files, Options options);

  // Answers a request that is new. Returns true if it has, false if there is nothing to do now.
  // UNAVAILABLE: a version has not been asked for, or not been published, for longer than wait_max.
  // FAILED_PRECONDITION: the format cannot hold this rank's weights (SlimeWriter::Create), they are
  // not of the checkpoint's types (CheckViewTypes), or rank 0 asks for something else than this
  // sender's options. Other errors of the file system.
  Result<bool> Step(const RankStatePtr& offered);

  // Returns whether the newest version is not in the folder yet.
  bool waiting() const { return waiting_since_.has_value(); }
  // Returns what has been published since the last call; nullopt: nothing.
  std::optional<Published> TakePublished();

 private:
  Status Adopt(const RankStatePtr& state);
  Result<std::optional<PartRequest>> ReadRequest() const;
  Status CheckRequest(const PartRequest& request) const;
  void NotePublished(uint64_t version);
  Result<bool> Wait(WeightVersion newest, const std::optional<PartRequest>& request);
  Status Answer(const PartRequest& request);
  Result<uint64_t> Write(const PartRequest& request, const std::string& part);
  Status Refuse(const PartRequest& request, const std::string& part, const Status& why);

  FileSystem& files_;
  const Options options_;
  std::unique_ptr<SlimeWriter> writer_;
  std::string answered_;  // the part
  Published last_;        // written, perhaps not published yet
  uint64_t published_ = 0;
  std::optional<Published> news_;
  std::optional<TimePoint> waiting_since_;
};

}  // namespace dws
