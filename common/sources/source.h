// A place that may have bytes of a version: the memory of a sender, its connection, a folder. The
// chain (source_chain.h) asks one source after the other; what they return is proved by digests, so
// a source may be wrong, slow or half right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/delta/objects/object_part.h"
#include "common/delta/squash.h"
#include "common/spool/full_assembly.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"
#include "common/sync_state/sync_target.h"

namespace dws {

// One trainer rank at the target's version: every read is about one.
struct Piece {
  const SyncTarget& target;
  TrainerRank rank;

  const SyncTarget::Rank& of() const { return target.ranks[rank.value()]; }
};

enum class Content : uint8_t {
  kDelta,  // a delta object, or the part of it with some slices
  kFull,   // full tensors
};
// "delta", "full".
inline std::string_view ToString(Content content) {
  return content == Content::kDelta ? "delta" : "full";
}

// Which delta is wanted. Refers to objects that its maker owns.
struct DeltaWant {
  WeightVersion base;
  const SliceSelection& slices;
  // What the engine holds as `base`, for a source that composes deltas; null: it can compose only
  // those that need no weights. Used by the caller's thread.
  const OldWeights* old = nullptr;
  // The caller already has the first `skip_bytes` bytes of the object. A source may return zeros
  // there; the size of the object stays.
  uint64_t skip_bytes = 0;
  // The caller will undo the delta, so the source must return steps, not new values.
  bool undo = false;
};

// What a source has of a published delta.
struct DeltaRead {
  static DeltaRead Object(Spool object) { return {.object = std::move(object)}; }
  static DeltaRead Without(std::string why) { return {.why = std::move(why)}; }
  static DeltaRead Keep(std::string why, std::function<void(const Spool& object)> keep) {
    return {.why = std::move(why), .keep = std::move(keep)};
  }

  // The object base -> target.version, or the part of it with the frames of the wanted slices, as
  // the source likes: ParseObject takes both. None: the source does not have it.
  std::optional<Spool> object = {};
  std::string why = {};  // it does not have it
  // If set, the chain calls it with the object that a later source brings, or destroys it.
  std::function<void(const Spool& object)> keep = {};
};

// Fetched frames of a version that is still captured wait in memory: at most so many bytes.
inline constexpr uint64_t kEarlyWaitingBytesMax = uint64_t{17} << 20;

// Takes frames of the wanted slices of a delta, some or all at a time; those of a slice ascend.
// Nothing proves them yet. An error ends the transfer with it.
using FrameTaker = std::function<Status(std::span<const SpooledFrame> frames, const Spool& spool)>;

// Threads: safe from any. Reads block until they are done, failed or cancelled.
//
// After these errors the chain asks the next source. UNAVAILABLE, DEADLINE_EXCEEDED: try again
// later. ABORTED: the version is not available, or no longer. DATA_LOSS: what arrived is damaged.
// FAILED_PRECONDITION: this source will never have it. These errors end the transfer: CANCELLED
// (the receiver stops, or the bytes are no longer wanted) and, of a delta, RESOURCE_EXHAUSTED
// (there is no room for it here). If every source fails, the transfer returns the last error.
class Source {
 public:
  virtual ~Source() = default;

  // One word: a label of metrics, a name in status, logs and flags.
  virtual std::string_view name() const = 0;
  virtual bool brings(Content content) const = 0;

  virtual Result<DeltaRead> ReadDelta(const Piece& /*piece*/, const DeltaWant& /*want*/,
                                      const Spool::Options& /*spool*/) {
    return DeltaRead::Without("has no deltas");
  }
  // Fills what is missing in `assembly`, as far as it can: OK does not say that nothing is missing.
  // For each range of Missing(): fill Room and call Take, or Take alone; stop when `wanted` returns
  // false. If the read fails, the blocks that it has filled stay.
  virtual Status ReadFull(const Piece& /*piece*/, FullAssembly& /*assembly*/) {
    return FailedPreconditionError("has no full tensors");
  }
  // Returns true if ReadDelta can compose the delta between any two versions that the sender
  // retains, at once. ABORTED then means that there is no such delta.
  virtual bool composes() const { return false; }
  // Returns false if nothing that `assembly` wants can come from here, whatever the sender has:
  // then the chain skips it and reports nothing, unless it is the only source that may be used.
  virtual bool suits(const FullAssembly& /*assembly*/) const { return true; }
  // Returns false if ReadFull and ReadFullCapture put nothing into the assembly's own room, so that
  // none is needed yet.
  virtual bool needs_room() const { return true; }
  // Returns true if the source reads a sender's memory, which the next capture changes. ReadFull
  // keeps a changed block as it is now (FullAssembly::KeepNewer), and MemoryReader turns it back;
  // or it leaves the block out and returns an error, and others bring it.
  // After one successful read of this kind the chain skips the other sources of this kind: they
  // would find the same blocks changed.
  virtual bool reads_memory() const { return false; }

  // Returns whether the chain should read the version from here while its sender captures it. Full
  // tensors: the first source that returns false hides those behind it, because it is worth waiting
  // for.
  virtual bool reads_captures(Content /*content*/, const Piece& /*piece*/) const { return false; }
  // The delta of a version that is captured: `take` gets its frames on the caller's thread; their
  // spool ends with the call. Returns the object's header and manifest once the version is
  // published. `spool`: of the frames that wait to be taken; `wanted` of it is called often.
  // ABORTED: the version was given up. Errors of `take`.
  virtual Result<std::vector<std::byte>> ReadDeltaCapture(const Piece& /*piece*/,
                                                          const DeltaWant& /*want*/,
                                                          const Spool::Options& /*spool*/,
                                                          const FrameTaker& /*take*/) {
    return AbortedError("deltas are read when they are published");
  }
  // Fills the blocks that the capture of `assembly.early()` has brought so far, again and again
  // until it ends. After OK the chain asks no other source while the capture lasts.
  virtual Status ReadFullCapture(const Piece& /*piece*/, FullAssembly& /*assembly*/) {
    return FailedPreconditionError("full tensors are read when they are published");
  }

  // What status adds to the name for that sender, as a fabric's provider; may be empty.
  virtual std::string detail(SenderIndex /*sender*/) const { return {}; }
  // The version was rejected: what is kept of it here may be damaged.
  virtual void Refused(const Piece& /*piece*/) {}
};

}  // namespace dws
