// A machine without a CUDA driver. Skipped where there is one.
#include <catch2/catch.hpp>

#include "common/memory/cuda/cuda_driver.h"

namespace dws::cuda {
namespace {

TEST_CASE("without a driver, the message says what to install", "[cuda]") {
  const Result<CudaDriverPtr> driver = CudaDriver::Load();
  if (driver.ok()) {
    WARN("skipped: this machine has a CUDA driver");
    return;
  }
  CHECK(driver.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(ToString(driver.status()), Catch::Contains("CUDA") && Catch::Contains("container"));
}

}  // namespace
}  // namespace dws::cuda
