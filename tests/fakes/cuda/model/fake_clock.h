// The fake driver's clock (model_clock.h) for programs that have loaded the fake driver.
#pragma once

#include <vector>

#include "tests/fakes/cuda/model/gpu_model.h"

namespace dws::cuda {

// Lifecycle: from construction to destruction the fake driver has a clock, and runs work as soon as
// it is called. One at a time; no work may be under way at either end. Threads: safe from any.
class FakeClock {
 public:
  // CHECK: this process has loaded a driver, and that is the fake one.
  explicit FakeClock(const GpuModel& model);
  ~FakeClock();
  FakeClock(const FakeClock&) = delete;
  FakeClock& operator=(const FakeClock&) = delete;

  // Seconds since the start, as the host would see them.
  double Now() const { return now_(); }
  // What was called since the last TakeLog, in order.
  std::vector<ModelledOp> TakeLog() const;

 private:
  SetGpuModel set_ = nullptr;
  GpuModelNow now_ = nullptr;
  TakeModelledOps take_ = nullptr;
};

}  // namespace dws::cuda
