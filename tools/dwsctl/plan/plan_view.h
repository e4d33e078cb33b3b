// Shows plans of shapes: as a table, as JSON and as a picture. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/mesh/shapes/parallel_layout.h"
#include "common/mesh/traffic.h"
#include "tools/dwsctl/base/bandwidth.h"

namespace dws::dwsctl {

// "tp=8,pp=8,ep=32,dp=4": each of tp, pp, dp, ep, etp, fsdp at most once, 1 to kWorldSizeMax.
// INVALID_ARGUMENT naming `flag` and the part that is wrong.
Result<mesh::ParallelSizes> ParseSizes(std::string_view flag, std::string_view text);

std::string_view ToString(mesh::SharePolicy policy);  // as in --policy

// What was planned under one policy.
struct PolicyPlan {
  mesh::SharePolicy policy = mesh::SharePolicy::kShares;
  Digest digest;
  size_t regions = 0;
  mesh::Traffic traffic;
};

struct PlanView {
  std::string_view model;
  uint64_t parameters = 0;
  uint64_t model_bytes = 0;
  std::string trainer;  // as on the command line
  std::string engine;
  uint32_t engines = 1;
  Bandwidth nic;
  std::vector<PolicyPlan> plans;
};

std::string FormatPlan(const PlanView& view);
std::string FormatPlanJson(const PlanView& view);
// A heat map: a row for each trainer rank, a column for each engine rank; darker is more bytes.
// With many ranks a cell is several.
std::string FormatPlanSvg(const PlanView& view, const PolicyPlan& plan);

}  // namespace dws::dwsctl
