// The frames of a delta that is being captured, for receivers that fetch it meanwhile. A slice's
// frames are final when its last block is captured, so they are made there and then, once:
// receivers get them, and sealing puts them into the object.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/delta/blocks/block.h"
#include "common/delta/objects/object_writer.h"
#include "common/model/class_table.h"
#include "common/model/delta_profile.h"
#include "common/model/weight_version.h"

namespace dws {

// A slice that changed and whose blocks have all been captured.
struct FramedSlice {
  RankSlice slice;
  std::shared_ptr<const SealedSlice> fast;
  std::shared_ptr<const SealedSlice> other;  // of the delta's profile; null: the same as `fast`
  uint64_t split_bytes = 0;                  // of class-split blocks' payloads in `other`

  const std::shared_ptr<const SealedSlice>& Of(bool of_other) const {
    return of_other && other != nullptr ? other : fast;
  }
};

// Returns whether a slice has other frames in profile `profile`, in which each block of `other`
// replaces the block of `relative`. Returns false if class-split blocks save less than their class
// table takes.
bool UsesOther(DeltaProfile profile, std::span<const EncodedBlock> relative,
               std::span<const EncodedBlock> other);
// Exchanges those blocks; a second call exchanges them back. Returns the bytes of class-split
// payloads that `other` had.
uint64_t ExchangeOther(std::span<EncodedBlock> relative, std::span<EncodedBlock> other);
// Returns the frames of a slice with these blocks; nullopt: it has not changed. `classes`: the
// table of class-split blocks. The call changes the blocks and restores them.
std::optional<FramedSlice> FrameSlice(RankSlice slice, DeltaProfile profile,
                                      std::span<EncodedBlock> relative,
                                      std::span<EncodedBlock> other,
                                      const std::optional<ClassTable>& classes);

// One delta, from the beginning of its capture. Lifecycle: open until it is published or given up;
// after that it no longer holds frames, but readers keep those that they took. Threads: safe from
// any.
class OpenDelta {
 public:
  enum class Stage : uint8_t { kOpen, kPublished, kGivenUp };

  // `profile`: the profile for which its blocks are encoded in addition to fast. `on_fetchable`:
  // called once, by the thread that adds frames, when enough of them are there to be worth a fetch.
  OpenDelta(WeightVersion version, WeightVersion base, DeltaProfile profile,
            std::function<void()> on_fetchable);

  WeightVersion version() const { return version_; }
  WeightVersion base() const { return base_; }
  DeltaProfile profile() const { return profile_; }
  Stage stage() const { return stage_.load(); }
  // Returns whether receivers should be told about it now.
  bool fetchable() const { return fetchable_.load() && stage() == Stage::kOpen; }

  void Add(FramedSlice slice);
  // The index-th slice that was added; nullopt: there is none yet, or it is no longer held.
  std::optional<FramedSlice> At(size_t index) const;
  // All that are held, by slice.
  std::vector<FramedSlice> Slices() const;

  // Call it when the retained version has all of it.
  void Publish() { End(Stage::kPublished); }
  void GiveUp() { End(Stage::kGivenUp); }

  // `wake` is called when the delta ends, by the thread that ends it, with a lock held; it is not
  // called if the delta has ended already. `who` tells readers apart, until they leave.
  void OnEnd(const void* who, std::function<void()> wake);
  void Leave(const void* who);

 private:
  void End(Stage stage);

  const WeightVersion version_;
  const WeightVersion base_;
  const DeltaProfile profile_;
  const std::function<void()> on_fetchable_;
  std::atomic<Stage> stage_{Stage::kOpen};
  std::atomic<bool> fetchable_{false};
  mutable Mutex mutex_;
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;               // of what was added, in profile fast
  std::vector<FramedSlice> slices_ GUARDED_BY(mutex_);  // in the order in which they were added
  std::map<const void*, std::function<void()>> wakes_ GUARDED_BY(mutex_);
};

}  // namespace dws
