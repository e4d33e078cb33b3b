// Assertions for our own bugs. Never assert on input, network or disk: return a Status for those.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace dws::internal {
[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  fmt::print(stderr, "{}:{}: CHECK failed: {}\n", file, line, condition);
  std::abort();
}
}  // namespace dws::internal

#define DWS_CHECK(condition) \
  ((condition) ? (void)0 : ::dws::internal::CheckFailed(#condition, __FILE__, __LINE__))
