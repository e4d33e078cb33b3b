// Models have as many parameters as published, and plans between real shapes the bytes that they
// must have.
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>
#include <numeric>

#include "common/mesh/shapes/parallel_layout.h"
#include "common/mesh/traffic.h"

namespace dws::mesh {
namespace {

// A model between a trainer and engines, planned.
struct Job {
  ModelTensors model;
  MeshLayout trainer;
  MeshLayout engines;
};

Job MakeJob(std::string_view name, const ParallelSizes& trainer, const ParallelSizes& engine,
            uint32_t engines) {
  const ModelShape* shape = FindModel(name);
  REQUIRE(shape != nullptr);
  Job job{.model = TensorsOf(*shape), .trainer = {}, .engines = {}};
  auto from = TrainerLayout(*shape, job.model, trainer);
  auto to = EngineLayout(*shape, job.model, engine, engines);
  INFO(name << ": " << from.status().ToString() << " " << to.status().ToString());
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  job.trainer = *std::move(from);
  job.engines = *std::move(to);
  return job;
}

Plan PlanOf(const Job& job, const PlanOptions& options = {}) {
  Result<Plan> plan = MakePlan(job.model.catalogue, job.trainer, job.engines, options);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  return *std::move(plan);
}

Traffic TrafficOfJob(const Job& job, SharePolicy policy) {
  return TrafficOf(PlanOf(job, {.policy = policy}), job.trainer.rank_count, job.engines.rank_count);
}

uint64_t Sum(const std::vector<uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

// The busiest rank over the mean of the busiest pipeline stage: only its ranks have its layers, so no
// plan can do better than 1.
double BalanceInStages(const std::vector<uint64_t>& sent, size_t stages) {
  const size_t ranks = sent.size() / stages;
  uint64_t most = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    const auto begin = sent.begin() + static_cast<std::ptrdiff_t>(stage * ranks);
    most = std::max(
        most, std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(ranks), uint64_t{0}));
  }
  return static_cast<double>(*std::max_element(sent.begin(), sent.end())) *
         static_cast<double>(ranks) / static_cast<double>(most);
}

}  // namespace

TEST_CASE("models have the published number of parameters", "[mesh]") {
  for (const ModelShape& shape : KnownModels()) {
    const auto count = static_cast<double>(TensorsOf(shape).ElementCount());
    INFO(shape.name << " has " << count << " parameters, published are "
                    << shape.published_parameters);
    REQUIRE(count == Approx(shape.published_parameters).epsilon(0.01));
  }
}

TEST_CASE("the busiest sender of every model sends at most 2 % more than the mean", "[mesh]") {
  const auto balance = [](std::string_view name, const ParallelSizes& trainer,
                          const ParallelSizes& engine, uint32_t engines) {
    const Job job = MakeJob(name, trainer, engine, engines);
    const Traffic traffic = TrafficOfJob(job, SharePolicy::kShares);
    REQUIRE(Sum(traffic.sent) == Sum(traffic.received));
    INFO(name);
    CHECK(Balance(traffic.sent) <= 1.02);
  };
  balance("llama-3-8b", {.tp = 2, .dp = 4}, {.tp = 2}, 4);
  balance("llama-3-70b", {.tp = 8, .dp = 4}, {.tp = 8}, 2);
  balance("qwen2.5-7b", {.tp = 4, .dp = 2}, {.tp = 2}, 4);
  balance("qwen3-8b", {.fsdp = 16}, {.tp = 16}, 1);
  balance("qwen3-30b-a3b", {.tp = 4, .dp = 4, .ep = 8}, {.tp = 8, .ep = 8}, 2);
  balance("glm-4.5", {.tp = 8, .dp = 4, .ep = 32}, {.tp = 8, .ep = 8}, 2);
  balance("deepseek-v3", {.tp = 8, .dp = 8, .ep = 64}, {.tp = 32, .ep = 32}, 2);
  balance("kimi-k2", {.tp = 8, .dp = 16, .ep = 128}, {.tp = 32, .ep = 32}, 4);
  balance("gpt-oss-120b", {.tp = 8, .dp = 2, .ep = 16}, {.tp = 8, .ep = 8}, 2);
}

TEST_CASE("a broadcast makes ep ranks receive ep times what an engine needs of experts", "[mesh]") {
  const Job job = MakeJob("qwen3-30b-a3b", {.tp = 4, .dp = 4, .ep = 8}, {.tp = 8, .ep = 8}, 1);
  const uint64_t all = job.model.SizeBytes();
  const Traffic broadcast = TrafficOfJob(job, SharePolicy::kBroadcast);
  REQUIRE(Sum(broadcast.received) == 8 * all);
  REQUIRE(broadcast.sent[0] == 8 * all);
  const Plan plan = PlanOf(job);
  uint64_t experts = 0;
  uint64_t experts_received = 0;
  const auto is_expert = [&](uint32_t tensor) {
    return job.model.catalogue[tensor].name.find(".experts.") != std::string::npos;
  };
  for (uint32_t t = 0; t < job.model.catalogue.size(); ++t) {
    if (is_expert(t)) experts += job.model.catalogue[t].SizeBytes();
  }
  for (const Region& region : plan.regions) {
    if (is_expert(region.tensor)) experts_received += plan.BytesOf(region);
  }
  REQUIRE(experts_received == experts);
  // The rest is whole tensors on every rank, and key-value heads on two.
  const Traffic shares = TrafficOf(plan, job.trainer.rank_count, job.engines.rank_count);
  REQUIRE(static_cast<double>(Sum(shares.received)) / static_cast<double>(all) < 1.02);
}

TEST_CASE("128 trainer ranks divide what 32 engine ranks receive", "[mesh]") {
  const Job job =
      MakeJob("glm-4.5", {.tp = 8, .pp = 4, .dp = 4, .ep = 32}, {.tp = 32, .ep = 32}, 1);
  REQUIRE(job.trainer.rank_count == 128);
  const uint64_t all = job.model.SizeBytes();
  const Traffic shares = TrafficOfJob(job, SharePolicy::kShares);
  const Traffic least = TrafficOfJob(job, SharePolicy::kLeastLoaded);
  const Traffic robin = TrafficOfJob(job, SharePolicy::kRoundRobin);
  const Traffic broadcast = TrafficOfJob(job, SharePolicy::kBroadcast);
  REQUIRE(Sum(least.sent) == Sum(shares.sent));
  REQUIRE(Sum(robin.sent) == Sum(shares.sent));
  REQUIRE(shares.received == least.received);
  REQUIRE(shares.received == robin.received);
  REQUIRE(Sum(broadcast.received) == 32 * all);
  REQUIRE(Sum(shares.received) < all * 106 / 100);
  REQUIRE(Balance(shares.sent) <= Balance(least.sent));
  REQUIRE(BalanceInStages(shares.sent, 4) <= 1.02);
}

TEST_CASE("the tensors of gpt-oss have the names and dtypes of its checkpoint", "[mesh]") {
  const ModelTensors model = TensorsOf(*FindModel("gpt-oss-120b"));
  const std::string layer = "model.layers.0.";
  std::vector<std::string> names;
  for (const CanonicalTensor& tensor : model.catalogue) {
    REQUIRE(tensor.dtype == DType::kBF16);
    if (tensor.name.starts_with(layer)) names.push_back(tensor.name.substr(layer.size()));
  }
  std::sort(names.begin(), names.end());
  REQUIRE(names ==
          std::vector<std::string>{
              "input_layernorm.weight", "mlp.experts.down_proj", "mlp.experts.down_proj_bias",
              "mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_bias", "mlp.router.bias",
              "mlp.router.weight", "post_attention_layernorm.weight", "self_attn.k_proj.bias",
              "self_attn.k_proj.weight", "self_attn.o_proj.bias", "self_attn.o_proj.weight",
              "self_attn.q_proj.bias", "self_attn.q_proj.weight", "self_attn.sinks",
              "self_attn.v_proj.bias", "self_attn.v_proj.weight"});
  for (const char* name : {"glm-4.5", "deepseek-v3", "kimi-k2"}) {
    for (const CanonicalTensor& tensor : TensorsOf(*FindModel(name)).catalogue) {
      const bool is_bias = tensor.name.ends_with(".mlp.gate.e_score_correction_bias");
      REQUIRE(tensor.dtype == (is_bias ? DType::kF32 : DType::kBF16));
    }
  }
}

TEST_CASE("sizes that do not divide a model are refused by name", "[mesh]") {
  const ModelShape& qwen = *FindModel("qwen3-30b-a3b");
  const ModelTensors model = TensorsOf(qwen);
  const auto requires_word = [](const Status& status, std::string_view word) {
    INFO(status.ToString());
    REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
    REQUIRE(Message(status).find(word) != std::string_view::npos);
  };
  requires_word(TrainerLayout(qwen, model, {.tp = 5}).status(), "tp=5");
  requires_word(TrainerLayout(qwen, model, {.tp = 4, .ep = 3}).status(), "ep=3");
  requires_word(TrainerLayout(qwen, model, {.tp = 4, .ep = 8}).status(), "ep*etp=8");
  requires_word(TrainerLayout(qwen, model, {.pp = 49}).status(), "pp=49");
  requires_word(TrainerLayout(qwen, model, {.dp = 5000}).status(), "5000 ranks");
  requires_word(EngineLayout(qwen, model, {.pp = 2}, 1).status(), "pp");
  requires_word(EngineLayout(qwen, model, {.tp = 2}, 0).status(), "0 ranks");
  REQUIRE(FindModel("gpt-2") == nullptr);
}

// Not a test of speed: prints what a trillion parameters cost here.
TEST_CASE("a trillion parameters are planned between 256 and 128 ranks", "[mesh]") {
  const Job job =
      MakeJob("kimi-k2", {.tp = 8, .pp = 8, .dp = 4, .ep = 32}, {.tp = 32, .ep = 32}, 4);
  REQUIRE(job.trainer.rank_count == 256);
  REQUIRE(job.engines.rank_count == 128);
  const auto begin = std::chrono::steady_clock::now();
  const Plan plan = PlanOf(job);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const Traffic traffic = TrafficOf(plan, 256, 128);
  std::cerr << "planned in " << seconds.count() << " s, " << plan.regions.size() << " regions, "
            << usage.ru_maxrss / 1024 << " MiB, balance " << Balance(traffic.sent)
            << ", in its stage " << BalanceInStages(traffic.sent, 8) << "\n";
  REQUIRE(Sum(traffic.received) == plan.covered_bytes);
  REQUIRE(BalanceInStages(traffic.sent, 8) <= 1.02);
}

}  // namespace dws::mesh
