#include "common/base/failpoint.h"

#include <catch2/catch.hpp>
#include <cstdlib>

namespace dws {
namespace {

Status Work() {
  DWS_FAILPOINT("test.work");
  DWS_KILLPOINT("test.work");
  return OkStatus();
}

TEST_CASE("a build without failpoints ignores an armed one", "[failpoint]") {
  ::setenv("DWS_FAILPOINT", "test.work:kill", 1);
  CHECK(Work().ok());
}

}  // namespace
}  // namespace dws
