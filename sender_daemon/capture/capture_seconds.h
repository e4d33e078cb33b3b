// The time that a capture took, by stage.
#pragma once

#include "common/base/clock.h"

namespace dws {

// What the thread that captures or seals waited for, in seconds; stages that overlap are not
// counted twice.
struct CaptureSeconds {
  double compare = 0;  // for comparisons on a GPU
  double lists = 0;    // for the lists of changes to cross PCIe
  double check = 0;    // for the lists to be compared with the snapshot
  double copy = 0;     // for blocks that are copied whole from a GPU
  double encode = 0;   // encoding, and storing into the snapshot; of host memory also comparing
  double seal = 0;     // making the delta object, after the capture

  CaptureSeconds& operator+=(const CaptureSeconds& other) {
    compare += other.compare;
    lists += other.lists;
    check += other.check;
    copy += other.copy;
    encode += other.encode;
    seal += other.seal;
    return *this;
  }
};

// Adds the time of its life to `seconds`.
class StageTime {
 public:
  explicit StageTime(double& seconds) : seconds_(seconds) {}
  ~StageTime() { seconds_ += ToSeconds(std::chrono::steady_clock::now() - began_); }
  StageTime(const StageTime&) = delete;
  StageTime& operator=(const StageTime&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace dws
