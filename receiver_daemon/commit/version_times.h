// The time of one version by stage, from its announcement until its senders know that the engine
// runs with it. Stages do not overlap: together with kOther they are the whole time. A plain value.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

namespace dws {

// In the order in which a version passes through them. docs/metrics.md defines each of them.
enum class VersionStage : uint8_t {
  kEarly,        // before the announcement, while trainers capture the version
  kQueue,        // announced, and not looked at yet
  kFetch,        // of the slowest rank; so are kUpload and kStage
  kUpload,       // to a device, the host's part: filling page-locked memory, starting the copy
  kStage,        // verify, decode and stage, without kUpload
  kHold,         // staged, and not committed yet
  kIntent,       // the ledger's record before the pause
  kGate,         // from the order to pause until the engine has answered
  kWrite,        // to live memory
  kProve,        // digests of what was written unproved
  kRebuild,      // the engine's derived tensors
  kResume,       // memory is whole, and the engine does not run yet
  kRecord,       // the ledger's record after the release
  kAcknowledge,  // telling the senders
  kOther,
};
inline constexpr size_t kVersionStages = static_cast<size_t>(VersionStage::kOther) + 1;

constexpr const char* NameOf(VersionStage stage) {
  switch (stage) {
    case VersionStage::kEarly:
      return "early";
    case VersionStage::kQueue:
      return "queue";
    case VersionStage::kFetch:
      return "fetch";
    case VersionStage::kUpload:
      return "upload";
    case VersionStage::kStage:
      return "stage";
    case VersionStage::kHold:
      return "hold";
    case VersionStage::kIntent:
      return "intent";
    case VersionStage::kGate:
      return "gate";
    case VersionStage::kWrite:
      return "write";
    case VersionStage::kProve:
      return "prove";
    case VersionStage::kRebuild:
      return "rebuild";
    case VersionStage::kResume:
      return "resume";
    case VersionStage::kRecord:
      return "record";
    case VersionStage::kAcknowledge:
      return "acknowledge";
    case VersionStage::kOther:
      return "other";
  }
  return "";
}

struct VersionTimes {
  std::array<Duration, kVersionStages> spent = {};

  Duration& operator[](VersionStage stage) { return spent[static_cast<size_t>(stage)]; }
  Duration operator[](VersionStage stage) const { return spent[static_cast<size_t>(stage)]; }

  Duration sum() const {
    Duration sum = {};
    for (const Duration duration : spent) sum += duration;
    return sum;
  }
  // From the announcement on.
  Duration since_announced() const { return sum() - (*this)[VersionStage::kEarly]; }

  // Adds to `taken` the part of `whole` that `part` covers, and returns the rest.
  static Duration Split(Duration whole, Duration part, Duration& taken) {
    const Duration fits = std::clamp<Duration>(part, Duration::zero(), whole);
    taken += fits;
    return whole - fits;
  }
};

}  // namespace dws
