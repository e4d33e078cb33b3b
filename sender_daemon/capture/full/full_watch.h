// Learns from the changes of past versions whether it is better to publish the next one in full: as
// full tensors, without a delta that leads to it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dws {

// Why no delta leads to a version.
enum class FullCause : uint8_t {
  kNone,   // a delta leads to it
  kFirst,  // the sender had nothing to compare with
  kAsked,  // the trainer wanted it so
  kDense,  // a delta would have been about as large as the weights (FullWatch)
};

// "", "first", "asked", "dense"
std::string_view ToString(FullCause cause);

// Lifecycle: one per snapshot. Threads: called only inside a capture, or with the gate held as for
// one, except Cause, which the thread that captures may call at any time.
class FullWatch {
 public:
  // Deltas are given up after kVersions versions in a row that handed over every block and whose
  // deltas had at least kFullShare of the weights' bytes. On fast links they are also given up
  // after as many versions whose deltas took at least the time of full versions (full_cost.h). They
  // come back after one version that lacked blocks, or whose delta would have had less than kLeave,
  // by a sample or by estimate. In between nothing changes. Full versions that the trainer asked
  // for do not count.
  static constexpr double kLeave = 3.0 / 4;
  static constexpr uint32_t kVersions = 2;
  // With fewer bytes of weights a delta takes milliseconds, and may fit its announcement.
  static constexpr uint64_t kWeightsBytesMin = uint64_t{16} << 20;
  // In every kSampleVersionEvery-th consecutive full version that the sender chose itself, it
  // encodes a sample to learn the size that a delta would have had: one block in kSampleEvery, and
  // at least kSampleBlocksMin if there are as many. Encoding a block costs about ten times as much
  // as copying it. For the versions in between, a changed element is assumed to cost what it cost
  // in the last sample.
  static constexpr uint32_t kSampleVersionEvery = 4;
  static constexpr uint64_t kSampleEvery = 64;
  static constexpr uint64_t kSampleBlocksMin = 32;

  FullWatch(uint64_t weights_bytes, uint64_t block_count)
      : weights_bytes_(weights_bytes), block_count_(block_count) {}

  // kDense if the next version is better published in full. `fast_links`: all receivers take deltas
  // at the speed of memory.
  FullCause Cause(bool fast_links) const {
    return by_bytes_.pays || (fast_links && by_time_.pays) ? FullCause::kDense : FullCause::kNone;
  }

  // Returns whether block `number` belongs to the sample of the full version that is being
  // captured. Consecutive samples have different blocks, and finally all. Learn ends the version.
  bool InSample(uint64_t number) const;

  struct Version {
    // The bytes of its delta in those of the weights, or of the sample's blocks encoded in theirs.
    std::optional<double> delta_share;  // nullopt: a full version without a sample
    uint64_t changed = 0;               // elements of all its blocks
    bool whole = false;                 // it handed over every block
  };
  // Called after a delta was captured, or a full version of the sender's own.
  void Learn(const Version& version);

 private:
  // The verdict of one of the two rules.
  struct Rule {
    bool pays = false;
    uint32_t dense = 0;  // versions in a row
    // `share` of the cost of a full version, of which `enter` is enough.
    void Learn(double share, double enter, bool whole);
  };

  uint64_t weights_bytes_;
  uint64_t block_count_;
  Rule by_bytes_;
  Rule by_time_;
  uint32_t unsampled_ = 0;    // full versions since the last delta or sample
  uint64_t learnt_ = 0;       // deltas and samples
  double changed_bytes_ = 0;  // of a delta for each changed element: of the last one, or sample
};

}  // namespace dws
