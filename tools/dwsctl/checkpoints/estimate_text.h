// Formats the output of `estimate`. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tools/checkpoint/estimate.h"
#include "tools/dwsctl/base/bandwidth.h"

namespace dws::dwsctl {

// What to format.
struct EstimateView {
  const checkpoint::Estimate& estimate;
  std::span<const Bandwidth> bandwidths;
  size_t groups_max = 20;
};

// For people; no line is longer than 80 columns.
std::string FormatEstimate(const EstimateView& view);
// One JSON object, indented; docs/dwsctl.md has its members.
std::string FormatEstimateJson(const EstimateView& view);

}  // namespace dws::dwsctl
