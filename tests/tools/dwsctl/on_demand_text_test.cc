#include <catch2/catch.hpp>
#include <string>

#include "tools/dwsctl/text/status_text.h"

namespace dws::dwsctl {

TEST_CASE("the status of a sender that trains on demand has its sums for other hosts", "[dwsctl]") {
  v1::StatusReply reply;
  reply.set_daemon("dws-sender");
  v1::OnDemandStatus& train = *reply.mutable_sender()->mutable_on_demand();
  train.set_minibatch(3);
  train.set_attempt(1);
  train.set_phase("sealed");
  train.set_phase_seconds(1.5);
  train.set_rank_present(true);
  train.set_waits_for("the leader to decide");
  const std::string told =
      "  on demand minibatch 3, attempt 1: sealed for 1.5 s, waits for the leader to decide; "
      "0 attempts abandoned";
  CHECK(FormatStatus(reply, 200).find(told + "\n") != std::string::npos);
  train.set_host_accumulators_bytes(3 << 20);
  CHECK(FormatStatus(reply, 200).find(told + "; 3.0 MiB of sums for other hosts\n") !=
        std::string::npos);
}

}  // namespace dws::dwsctl
