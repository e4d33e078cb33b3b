// What is logged of sources that are passed over.
#include <catch2/catch.hpp>
#include <utility>

#include "tests/common/sources/chain_case.h"
#include "tests/fakes/log_lines.h"

namespace dws {

TEST_CASE("a source that is passed over is logged once, until it works or fails otherwise",
          "[sources]") {
  ChainCase it;
  it.second.delta_bytes = 1;
  SourceChain chain = it.Chain({&it.first, &it.second});
  LogLines log;
  // Returns how many lines three deltas lead to while the first source does this.
  const auto warned = [&](Status fails) {
    it.first.fails = std::move(fails);
    for (int i = 0; i < 3; ++i) REQUIRE(it.Object(chain).ok());
    return log.Count(" W test source_passed_over ");
  };
  CHECK(warned(UnavailableError("away")) == 1);
  CHECK(warned(UnavailableError("away for another reason")) == 0);
  CHECK(warned(DataLossError("damaged")) == 1);
  CHECK(warned(OkStatus()) == 0);  // it does not have it, and works
  CHECK(warned(DataLossError("damaged")) == 1);
  // Full tensors, and other senders, are another matter.
  it.first.blocks_max = 0;
  REQUIRE(it.Full(chain).ok());
  REQUIRE(it.Full(chain).ok());
  CHECK(log.Count(" W test source_passed_over ") == 1);
  it.target.ranks[0].sender = SenderIndex(1);
  CHECK(warned(DataLossError("damaged")) == 1);
  // That a source does not suit is no fault.
  it.first.fails = FailedPreconditionError("on another host");
  REQUIRE(it.Object(chain).ok());
  REQUIRE(it.Object(chain).ok());
  CHECK(log.Count(" I test source_passed_over ") == 1);
}

}  // namespace dws
