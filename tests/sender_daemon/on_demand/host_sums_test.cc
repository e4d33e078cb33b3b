// Senders that add up their host's gradients for owners on other hosts. Here it is left to chance
// when a rank hears that it is asked; on_demand_sums_test.py counts bytes.
#include <catch2/catch.hpp>
#include <limits>

#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/on_demand/minibatches.h"

namespace dws {
namespace {

constexpr uint64_t kPlenty = uint64_t{1} << 30;

// Hosts of two ranks, each of which has as much room.
ClusterOptions OfTwo(uint32_t ranks, uint64_t room = kPlenty) {
  ClusterOptions options = Uneven(ranks);
  options.same_host = false;
  options.on_host = 2;
  options.accumulate_bytes.assign(ranks, room);
  return options;
}

uint64_t Combined(TrainCluster& cluster) {
  uint64_t pieces = 0;
  for (uint32_t r = 0; r < cluster.options().ranks; ++r) {
    pieces += cluster.sender(r).Status().combined_pieces();
  }
  return pieces;
}

}  // namespace

TEST_CASE("owners have the sum of all pieces, also of those that hosts have added up",
          "[host_sums]") {
  ClusterOptions options = OfTwo(GENERATE(3U, 4U, 6U));
  options.exact = GENERATE(false, true);
  options.dtype = GENERATE(DType::kF32, DType::kBF16);
  INFO(options.ranks << " ranks, exact " << options.exact << ", " << ToString(options.dtype));
  TrainCluster cluster(options);
  Model model(options, Catch::rngSeed());
  cluster.JoinAll();
  for (uint64_t minibatch = 1; minibatch <= 3; ++minibatch) {
    StepAll(cluster, model, minibatch);
    PublishAll(cluster, minibatch + 1);
  }
  CHECK(Combined(cluster) > 0);
}

TEST_CASE("sums of a host take no more room than they may, and the rest goes to its owners",
          "[host_sums]") {
  // The second unit, of 33 elements, has room, and the third one; the first has not.
  ClusterOptions options = OfTwo(4, 64 * 8);
  options.exact = GENERATE(false, true);
  options.accumulate_bytes[3] = 0;
  TrainCluster cluster(options);
  Model model(options, Catch::rngSeed());
  cluster.JoinAll();
  for (uint64_t minibatch = 1; minibatch <= 3; ++minibatch) {
    StepAll(cluster, model, minibatch);
    PublishAll(cluster, minibatch + 1);
  }
  CHECK(Combined(cluster) > 0);
  for (uint32_t r = 0; r < 4; ++r) {
    const v1::OnDemandStatus status = cluster.sender(r).Status();
    CHECK((status.host_accumulators_bytes() == 0) == (r == 3));
    CHECK(status.host_accumulators_bytes() <= options.accumulate_bytes[r]);
    CHECK((status.combined_pieces() == 0) == (r == 3));
  }
}

TEST_CASE("a sender that adds for its host and starts again takes part in the next attempt",
          "[host_sums]") {
  TrainCluster cluster(OfTwo(4));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  StepAll(cluster, model, 1);
  PublishAll(cluster, 2);
  const uint32_t rank = GENERATE(0U, 1U, 2U);
  for (uint32_t r = 0; r < 4; ++r) cluster.rank(r).AwaitOpen(2);
  for (uint32_t r = 0; r < 4; ++r) CHECK(cluster.rank(r).Push(0, model.Draw(0)));
  cluster.RestartSender(rank);
  REQUIRE(cluster.rank(rank).Join(cluster.sender(rank).engine(), 2).ok());
  StepAll(cluster, model, 2);
  PublishAll(cluster, 3);
  StepAll(cluster, model, 3);
}

TEST_CASE("a rank whose process is replaced is asked again in the next attempt", "[host_sums]") {
  TrainCluster cluster(OfTwo(4));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  const uint32_t rank = GENERATE(0U, 3U);
  for (uint32_t r = 0; r < 4; ++r) cluster.rank(r).AwaitOpen(1);
  CHECK(cluster.rank(rank).Push(0, model.Draw(0)));
  cluster.rank(rank).Leave();
  cluster.ReplaceRank(rank);
  REQUIRE(cluster.rank(rank).Join(cluster.sender(rank).engine(), 1).ok());
  StepAll(cluster, model, 1);
  PublishAll(cluster, 2);
  StepAll(cluster, model, 2);
}

TEST_CASE("what a rank declares to push has to fit the job and its pieces", "[host_sums]") {
  TrainCluster cluster(OfTwo(4));
  const Status refused = cluster.rank(0).Join(cluster.sender(0).engine(), 1,
                                              [](JoinOrder& order) { order.pushed[1].pop_back(); });
  CHECK(absl::IsInvalidArgument(refused));
  CHECK_THAT(ToString(refused),
             Catch::Matchers::Contains("unit 'u1' is pushed to 3 owners, and the job has 4"));
}

}  // namespace dws
