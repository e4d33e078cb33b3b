// Models have as many parameters as published, and plans between real shapes the bytes that they
// must have.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <tuple>

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

bool IsExpert(const CanonicalTensor& tensor) {
  return tensor.name.find(".experts.") != std::string::npos;
}

uint64_t ExpertBytes(const Job& job) {
  uint64_t bytes = 0;
  for (const CanonicalTensor& tensor : job.model.catalogue) {
    if (IsExpert(tensor)) bytes += tensor.SizeBytes();
  }
  return bytes;
}

uint64_t ExpertBytesReceived(const Job& job) {
  const Plan plan = PlanOf(job);
  uint64_t bytes = 0;
  for (const Region& region : plan.regions) {
    if (IsExpert(job.model.catalogue[region.tensor])) bytes += plan.BytesOf(region);
  }
  return bytes;
}

// Bytes that the busiest source rank cannot send less than, whatever the plan: of any k ranks, what
// only they hold divided by k. Tried for the k busiest ranks of `plan`, for each k. Of models where
// one tensor of the source holds an element.
double FloorOf(const Plan& plan, const std::vector<uint64_t>& sent, const MeshLayout& source) {
  std::vector<uint32_t> order(source.rank_count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return sent[a] > sent[b]; });
  std::vector<size_t> place(source.rank_count);
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  // Of each rank, the last place of those that hold the same; tensors that are placed alike share
  // it.
  using Key = std::tuple<uint32_t, std::vector<uint64_t>, std::vector<Placement>>;
  std::map<Key, std::vector<size_t>> last_places;
  std::vector<const std::vector<size_t>*> last_of;
  for (const MeshTensor& tensor : source.tensors) {
    const auto [found, is_new] =
        last_places.try_emplace(Key(tensor.mesh, tensor.content.shape, tensor.placements));
    last_of.push_back(&found->second);
    if (!is_new) continue;
    found->second.resize(source.rank_count);
    const auto holdings =
        HoldingsOf(source.meshes[tensor.mesh], tensor.placements, tensor.content.shape);
    REQUIRE(holdings.ok());
    for (const Holding& holding : *holdings) {
      size_t last = 0;
      for (const uint32_t rank : holding.ranks) last = std::max(last, place[rank]);
      for (const uint32_t rank : holding.ranks) found->second[rank] = last;
    }
  }
  std::vector<uint64_t> only(source.rank_count,
                             0);  // that the first k + 1 ranks hold, not the first k
  for (const Region& region : plan.regions) {
    only[(*last_of[region.source_tensor])[region.source]] += plan.BytesOf(region);
  }
  double floor = 0;
  uint64_t bytes = 0;
  for (size_t k = 0; k < only.size(); ++k) {
    bytes += only[k];
    floor = std::max(floor, static_cast<double>(bytes) / static_cast<double>(k + 1));
  }
  return floor;
}

// What the busiest source rank sends: over the mean, and over the least that is possible.
struct Busiest {
  double over_mean = 0;
  double over_floor = 0;
};

Busiest BusiestOf(const Job& job) {
  const Plan plan = PlanOf(job);
  const Traffic traffic = TrafficOf(plan, job.trainer.rank_count, job.engines.rank_count);
  REQUIRE(Sum(traffic.sent) == Sum(traffic.received));
  const auto most =
      static_cast<double>(*std::max_element(traffic.sent.begin(), traffic.sent.end()));
  return {.over_mean = Balance(traffic.sent),
          .over_floor = most / FloorOf(plan, traffic.sent, job.trainer)};
}

void RequireRefused(const Status& status, std::string_view word) {
  INFO(status.ToString());
  REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
  INFO(word);
  REQUIRE(Message(status).find(word) != std::string_view::npos);
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
  const auto check = [](std::string_view name, const ParallelSizes& trainer,
                        const ParallelSizes& engine, uint32_t engines) {
    const Busiest busiest = BusiestOf(MakeJob(name, trainer, engine, engines));
    INFO(name << ": " << busiest.over_mean << ", over the floor " << busiest.over_floor);
    CHECK(busiest.over_mean <= 1.02);
    CHECK(busiest.over_floor >= 1 - 1e-9);
  };
  check("llama-3-8b", {.tp = 2, .dp = 4}, {.tp = 2}, 4);
  check("llama-3-70b", {.tp = 8, .dp = 4}, {.tp = 8}, 2);
  check("llama-3-70b", {.fsdp = 64}, {.tp = 8}, 2);
  check("qwen2.5-7b", {.tp = 4, .dp = 2}, {.tp = 2}, 4);
  check("qwen3-8b", {.fsdp = 16}, {.tp = 16}, 1);
  check("qwen3-30b-a3b", {.tp = 4, .dp = 4, .ep = 8}, {.tp = 8, .ep = 8}, 2);
  check("glm-4.5", {.tp = 8, .dp = 4, .ep = 32}, {.tp = 8, .ep = 8}, 2);
  check("deepseek-v3", {.tp = 8, .dp = 8, .ep = 64}, {.tp = 32, .ep = 32}, 2);
  check("kimi-k2", {.tp = 8, .dp = 16, .ep = 128}, {.tp = 32, .ep = 32}, 4);
  check("gpt-oss-120b", {.tp = 8, .dp = 2, .ep = 16}, {.tp = 8, .ep = 8}, 2);
  check("gpt-oss-120b", {.fsdp = 128}, {.tp = 8, .ep = 8}, 2);
  check("gpt-oss-120b", {.dp = 2, .fsdp = 128}, {.tp = 8, .ep = 8}, 2);
}

// What docs/dwsctl.md says of trainers that are cut unevenly.
TEST_CASE("where only some ranks hold a layer, the busiest sends at most 2 % more than it must",
          "[mesh]") {
  const auto check = [](std::string_view name, const ParallelSizes& trainer, double over_mean) {
    const Busiest busiest = BusiestOf(MakeJob(name, trainer, {.tp = 32, .ep = 32}, 1));
    INFO(name << ": " << busiest.over_mean << ", over the floor " << busiest.over_floor);
    CHECK(busiest.over_mean > 1.02);
    CHECK(busiest.over_mean <= over_mean);
    CHECK(busiest.over_floor >= 1 - 1e-9);
    CHECK(busiest.over_floor <= 1.02);
  };
  // 48 layers in 4 stages of 12, but the first and the last have the embedding and the head.
  check("qwen3-30b-a3b", {.tp = 4, .pp = 4, .dp = 4, .ep = 8}, 1.024);
  // 92 layers in 4 stages of 23, but the first has 3 dense ones.
  check("glm-4.5", {.tp = 8, .pp = 4, .dp = 4, .ep = 32}, 1.037);
  check("kimi-k2", {.tp = 8, .pp = 8, .dp = 4, .ep = 32}, 1.065);       // 61 layers: 7 or 8 a stage
  check("deepseek-v3", {.tp = 8, .pp = 16, .dp = 4, .ep = 32}, 1.097);  // 61 layers: 3 or 4 a stage
  // 128 experts are the rows of a tensor: half of the ranks have none. With dp=2,fsdp=128 all have.
  check("gpt-oss-120b", {.fsdp = 256}, 1.983);
}

TEST_CASE("an engine receives each expert once, and of a broadcast as often as it has ranks",
          "[mesh]") {
  for (const uint32_t ep : {1U, 2U, 4U, 8U, 16U, 32U}) {
    const Job job = MakeJob("qwen3-30b-a3b", {.tp = 4, .dp = 4, .ep = 8}, {.tp = ep, .ep = ep}, 1);
    INFO("ep=" << ep);
    // By name: what is cut, what is cut into at most 4 key-value heads, and what all ranks have.
    uint64_t needed = 0;
    for (const CanonicalTensor& tensor : job.model.catalogue) {
      const auto has = [&](std::string_view part) {
        return tensor.name.find(part) != std::string::npos;
      };
      const bool cut = IsExpert(tensor) || has("q_proj") || has("o_proj") || has("embed_tokens") ||
                       has("lm_head");
      const uint64_t times = cut ? 1 : has("k_proj") || has("v_proj") ? std::max(1U, ep / 4) : ep;
      needed += times * tensor.SizeBytes();
    }
    const Traffic shares = TrafficOfJob(job, SharePolicy::kShares);
    const Traffic broadcast = TrafficOfJob(job, SharePolicy::kBroadcast);
    REQUIRE(Sum(shares.received) == needed);
    REQUIRE(Balance(shares.received) <= 1.001);
    REQUIRE(ExpertBytesReceived(job) == ExpertBytes(job));
    REQUIRE(broadcast.received == std::vector<uint64_t>(ep, job.model.SizeBytes()));
    const double times =
        static_cast<double>(Sum(broadcast.received)) / static_cast<double>(Sum(shares.received));
    REQUIRE(times <= ep);
    REQUIRE(times >= ep / 1.05);
  }
}

TEST_CASE("engines without expert parallelism cut their experts over all of their ranks",
          "[mesh]") {
  const auto received = [](std::string_view name, const ParallelSizes& engine, uint64_t times) {
    const Job job = MakeJob(name, {.tp = 4, .dp = 4, .ep = 8}, engine, 1);
    INFO(name << " tp=" << engine.tp << " dp=" << engine.dp << " ep=" << engine.ep);
    REQUIRE(ExpertBytesReceived(job) == times * ExpertBytes(job));
  };
  received("qwen3-30b-a3b", {.tp = 8}, 1);
  received("qwen3-30b-a3b", {.tp = 8, .ep = 4}, 1);
  received("qwen3-30b-a3b", {.tp = 4, .dp = 2}, 1);
  received("gpt-oss-120b", {.tp = 8}, 1);
  received("qwen3-30b-a3b", {.tp = 8, .etp = 2}, 4);  // replicas are to be asked for
}

TEST_CASE("however many trainer ranks there are, each sends its share of what engines receive",
          "[mesh]") {
  for (const uint32_t ranks : {32U, 64U, 128U}) {
    const uint32_t engine = ranks / 4;
    const Job job =
        MakeJob("glm-4.5", {.tp = 8, .dp = ranks / 8, .ep = 32}, {.tp = engine, .ep = engine}, 1);
    INFO(ranks << " trainer ranks to " << engine);
    REQUIRE(job.trainer.rank_count == ranks);
    const auto all = static_cast<double>(job.model.SizeBytes());
    const Traffic shares = TrafficOfJob(job, SharePolicy::kShares);
    const Traffic least = TrafficOfJob(job, SharePolicy::kLeastLoaded);
    const Traffic robin = TrafficOfJob(job, SharePolicy::kRoundRobin);
    const Traffic broadcast = TrafficOfJob(job, SharePolicy::kBroadcast);
    CHECK(shares.received == least.received);
    CHECK(shares.received == robin.received);
    CHECK(static_cast<double>(Sum(shares.received)) <= 1.06 * all);
    CHECK(Balance(shares.sent) <= 1.002);
    CHECK(Balance(shares.sent) < Balance(least.sent));
    CHECK(Balance(least.sent) <= 1.04);
    // One of the replicas of an expert sends it: the others have less to do.
    CHECK(Balance(robin.sent) == Approx(ranks / 32).epsilon(0.15));
    // Engine ranks receive their part at the same time, or everything one after the other.
    const double times = SecondsAt(broadcast, 1) / SecondsAt(shares, 1);
    CHECK(times <= engine * engine);
    CHECK(times >= engine * engine / 1.06);
  }
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

TEST_CASE("vocabularies are padded as Megatron and as vLLM pad them", "[mesh]") {
  const Job job = MakeJob("llama-3-8b", {.tp = 8}, {.tp = 8}, 1);  // 128256 words, 64 times 2004
  REQUIRE(job.trainer.tensors.front().content.shape[0] == 129'024);
  REQUIRE(job.engines.tensors.front().content.shape[0] == 128'256);
}

TEST_CASE("sizes that do not divide a model are refused by name", "[mesh]") {
  const ModelShape& qwen = *FindModel("qwen3-30b-a3b");
  const ModelTensors model = TensorsOf(qwen);
  RequireRefused(TrainerLayout(qwen, model, {.tp = 5}).status(), "tp=5");
  RequireRefused(TrainerLayout(qwen, model, {.tp = 4, .ep = 3}).status(), "ep=3");
  RequireRefused(TrainerLayout(qwen, model, {.tp = 4, .ep = 8}).status(), "ep*etp=8");
  RequireRefused(TrainerLayout(qwen, model, {.pp = 49}).status(), "pp=49");
  RequireRefused(TrainerLayout(qwen, model, {.dp = 5000}).status(), "5000 ranks");
  RequireRefused(TrainerLayout(qwen, model, {.tp = 2, .fsdp = 8}).status(), "fsdp=8");
  RequireRefused(EngineLayout(qwen, model, {.pp = 2}, 1).status(), "pp");
  RequireRefused(EngineLayout(qwen, model, {.tp = 2}, 0).status(), "0 ranks");
  RequireRefused(EngineLayout(qwen, model, {.tp = 4, .dp = 128}, 1).status(),
                 "etp=512 does not divide the 768 intermediate features of an expert");
  RequireRefused(EngineLayout(qwen, model, {.tp = 4, .ep = 8}, 1).status(), "ep*etp=8");
  const auto of_others = [](const ModelShape& shape, const ParallelSizes& sizes, bool engine) {
    const ModelTensors tensors = TensorsOf(shape);
    return engine ? EngineLayout(shape, tensors, sizes, 1).status()
                  : TrainerLayout(shape, tensors, sizes).status();
  };
  for (const bool engine : {false, true}) {
    RequireRefused(of_others(*FindModel("qwen2.5-7b"), {.tp = 28}, engine),
                   "tp=28 does not divide the 18944 intermediate features");
    ModelShape narrow = *FindModel("glm-4.5");
    narrow.shared_experts = 1;
    narrow.expert_intermediate = 1500;
    RequireRefused(of_others(narrow, {.tp = 8, .ep = 8}, engine),
                   "tp=8 does not divide the 1500 intermediate features of the shared experts");
  }
  REQUIRE(of_others(*FindModel("glm-4.5"), {.tp = 48}, false).ok());
  RequireRefused(of_others(*FindModel("glm-4.5"), {.tp = 48}, true),
                 "tp=48 does not divide the 151552 words of the padded vocabulary");
  REQUIRE(FindModel("gpt-2") == nullptr);
}

}  // namespace dws::mesh
