// Where the time of a part of a timeline goes: the engines of the modelled GPU, and the host.
#pragma once

#include <span>

#include "tests/fakes/cuda/model/gpu_model.h"

namespace dws::bench {

// In seconds of the clock.
struct TimeSplit {
  double whole = 0;
  double compute = 0;  // the GPU's engines are busy
  double to_device = 0;
  double to_host = 0;
  double waits = 0;   // a thread of the host waits for the GPU
  double memory = 0;  // the driver takes or locks memory
  double host = 0;    // the rest: the host computes
  // Parts of `waits`: with two or more engines busy, and with none (latencies).
  double waits_overlapped = 0;
  double waits_idle = 0;
  // A part of the time with any engine busy: the host computes meanwhile.
  double busy = 0;
  double hidden = 0;

  TimeSplit& operator+=(const TimeSplit& other);
};

TimeSplit SplitTime(std::span<const cuda::ModelledOp> log, double begin, double end);

}  // namespace dws::bench
