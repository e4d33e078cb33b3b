// What decides, beside the trainer, which versions are published.
#pragma once

#include <functional>

#include "common/base/status.h"
#include "common/model/weight_version.h"

namespace dws {

// By default all are. Threads: the trainer's executor.
struct PublishGate {
  // An error refuses the version.
  std::function<Status(WeightVersion version)> may = [](WeightVersion) { return OkStatus(); };
  // The weights of the version are captured.
  std::function<void(WeightVersion version)> captured = [](WeightVersion) {};
};

}  // namespace dws
