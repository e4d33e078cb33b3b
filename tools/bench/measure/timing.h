// Times several pieces of work against each other on a machine that is not quiet: they take turns,
// and the median of each counts.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace dws::bench {

struct Contender {
  std::function<void()> run;
  std::function<void()> prepare = nullptr;  // before each run, not timed; may be empty
};

// Runs every contender in turn, `rounds` times after a first round that does not count. The median
// seconds of each.
std::vector<double> MedianSeconds(std::span<const Contender> contenders, int rounds);

double Median(std::vector<double> values);

}  // namespace dws::bench
