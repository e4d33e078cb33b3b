// The course of events of one seed: time, chance, network, and what is noticed. Each model derives
// its world from it.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulation/events.h"
#include "tests/simulation/network.h"
#include "tests/simulation/options.h"

namespace dws::sim {

// Everything in it follows from one seed.
class Course {
 public:
  explicit Course(const Options& options);
  Course(const Course&) = delete;
  Course& operator=(const Course&) = delete;

  const Options options;
  Events events;
  Random random;
  Network network;

  bool tracing() const { return options.trace; }
  template <typename... Args>
  void Trace(fmt::format_string<Args...> format, Args&&... args) {
    if (tracing()) AddTrace(fmt::format(format, std::forward<Args>(args)...));
  }
  const std::vector<std::string>& trace() const { return trace_; }

  template <typename... Args>
  void Violate(fmt::format_string<Args...> format, Args&&... args) {
    if (violation_.empty()) violation_ = fmt::format(format, std::forward<Args>(args)...);
    Trace("VIOLATION {}", violation_);
  }
  // The first violation, or "".
  const std::string& violation() const { return violation_; }
  // Counts a situation that a rule handles, to show that it occurs.
  void See(std::string_view what) { ++seen[what]; }
  uint64_t faults = 0;
  std::map<std::string_view, uint64_t> seen;

 private:
  void AddTrace(std::string line);

  std::string violation_;
  std::vector<std::string> trace_;
};

}  // namespace dws::sim
