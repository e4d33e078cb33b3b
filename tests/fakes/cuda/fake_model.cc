// The fake driver: the functions that start and read its clock, for model/fake_clock.h.
#include <algorithm>
#include <memory>

#include "tests/fakes/cuda/fake_state.h"

namespace dws::cuda {

DWS_FAKE_CUDA_EXPORT void dwsFakeSetGpuModel(const GpuModel* model);
DWS_FAKE_CUDA_EXPORT double dwsFakeGpuModelNow();
DWS_FAKE_CUDA_EXPORT uint64_t dwsFakeTakeModelledOps(ModelledOp* out, uint64_t max);

void dwsFakeSetGpuModel(const GpuModel* model) {
  State& state = TheState();
  MutexLock lock(state.mutex);
  state.clock.reset();
  state.RunAll();
  if (model != nullptr) state.clock = std::make_shared<ModelClock>(*model);
}

double dwsFakeGpuModelNow() {
  State& state = TheState();
  MutexLock lock(state.mutex);
  return state.clock == nullptr ? 0 : state.clock->Now();
}

uint64_t dwsFakeTakeModelledOps(ModelledOp* out, uint64_t max) {
  State& state = TheState();
  MutexLock lock(state.mutex);
  if (state.clock == nullptr) return 0;
  const std::vector<ModelledOp> taken = state.clock->TakeLog(max);
  std::copy(taken.begin(), taken.end(), out);
  return taken.size();
}

}  // namespace dws::cuda
