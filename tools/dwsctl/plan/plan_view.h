// Shows plans, of shapes and of running jobs: as a table, as JSON and as a picture. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/mesh/shapes/parallel_layout.h"
#include "common/mesh/traffic.h"
#include "proto/admin.pb.h"
#include "tools/dwsctl/base/bandwidth.h"

namespace dws::dwsctl {

// "tp=8,pp=8,ep=32,dp=4": each of tp, pp, dp, ep, etp, fsdp at most once, 1 to kWorldSizeMax.
// INVALID_ARGUMENT naming `flag` and the part that is wrong.
Result<mesh::ParallelSizes> ParseSizes(std::string_view flag, std::string_view text);

std::string_view ToString(mesh::SharePolicy policy);  // as in --policy

// What was planned under one policy.
struct PolicyPlan {
  std::string policy;  // as in --policy; "owners" for a job: every slice comes from its one owner
  Digest digest;
  size_t regions = 0;  // of a job: slices
  mesh::Traffic traffic;
};

struct PlanView {
  std::string model;  // of a job: its id
  bool is_job = false;
  uint64_t parameters = 0;
  uint64_t model_bytes = 0;
  std::string trainer;  // sizes as on the command line; of a job: none
  std::string engine;   // the same
  uint32_t engines = 1;
  std::vector<std::string> receivers;  // of a job: what traffic.received is numbered by
  Bandwidth nic;                       // of shapes
  std::vector<PolicyPlan> plans;
};

// Makes the plan of a job from the answers of its receivers. INVALID_ARGUMENT: there are none, or
// they do not belong to one job with one layout (the message names two of them), or one takes more
// than the job has.
Result<PlanView> PlanOfJob(const std::vector<v1::PlanReply>& replies);

std::string FormatPlan(const PlanView& view);
std::string FormatPlanJson(const PlanView& view);
// A heat map: a row for each trainer rank, a column for each engine rank; darker is more bytes.
// With many ranks a cell is several.
std::string FormatPlanSvg(const PlanView& view, const PolicyPlan& plan);

}  // namespace dws::dwsctl
