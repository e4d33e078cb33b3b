// The functions are looked up, because programs load the driver while they run.
#include "tests/fakes/cuda/model/fake_clock.h"

#include <dlfcn.h>

#include <cstring>

#include "common/base/check.h"

namespace dws::cuda {
namespace {

constexpr uint64_t kOpsAtOnce = 4096;

template <typename F>
void LookUp(void* library, const char* name, F& function) {
  void* const symbol = ::dlsym(library, name);
  DWS_CHECK(symbol != nullptr);  // a GPU's driver has no clock
  std::memcpy(&function, &symbol, sizeof(symbol));
}

}  // namespace

FakeClock::FakeClock(const GpuModel& model) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  DWS_CHECK(library != nullptr);
  LookUp(library, "dwsFakeSetGpuModel", set_);
  LookUp(library, "dwsFakeGpuModelNow", now_);
  LookUp(library, "dwsFakeTakeModelledOps", take_);
  ::dlclose(library);  // the driver itself stays loaded
  set_(&model);
}

FakeClock::~FakeClock() { set_(nullptr); }

std::vector<ModelledOp> FakeClock::TakeLog() const {
  std::vector<ModelledOp> log;
  for (uint64_t taken = kOpsAtOnce; taken == kOpsAtOnce;) {
    const size_t size = log.size();
    log.resize(size + kOpsAtOnce);
    taken = take_(log.data() + size, kOpsAtOnce);
    log.resize(size + taken);
  }
  return log;
}

}  // namespace dws::cuda
