#include "common/sync_state/retained_chain.h"

#include <catch2/catch.hpp>

namespace dws {
namespace {

WeightVersion Version(uint64_t version) { return WeightVersion(version); }

// Versions 1 to 5, where 1 and 4 have no base: 1, 2 <- 1, 3 <- 2, 4, 5 <- 4.
RetainedChain Five(size_t versions_max) {
  RetainedChain chain(1000, versions_max);
  for (uint64_t v = 1; v <= 5; ++v) {
    chain.Append(Version(v), v == 1 || v == 4 ? std::nullopt : std::optional(Version(v - 1)), 10);
  }
  return chain;
}

}  // namespace

TEST_CASE("consecutive retained versions lead from one to another", "[protocol]") {
  const RetainedChain chain = Five(10);
  const auto all = chain.Lead(Version(1), Version(3));
  REQUIRE(all.ok());
  CHECK(all->first == 1);
  CHECK(all->count == 2);
  CHECK(chain.Lead(Version(4), Version(5)).value().first == 4);
}

TEST_CASE("versions not retained or without a base lead to no other version", "[protocol]") {
  const RetainedChain chain = Five(10);
  CHECK(absl::IsAborted(chain.Lead(Version(3), Version(4)).status()));  // served in full only
  CHECK(absl::IsAborted(chain.Lead(Version(2), Version(5)).status()));
  CHECK(absl::IsAborted(chain.Lead(Version(3), Version(3)).status()));
  CHECK(absl::IsAborted(chain.Lead(Version(5), Version(6)).status()));
  CHECK(absl::IsAborted(chain.Lead(Version(3), Version(2)).status()));
  CHECK(absl::IsAborted(Five(2).Lead(Version(1), Version(3)).status()));
  CHECK(Five(2).Lead(Version(4), Version(5)).ok());
  // The message tells a version above the log's, which nobody has, from one that is served in full.
  CHECK(Message(chain.Lead(Version(3), Version(6)).status()) ==
        "version 6 is not in the log, which retains 1 to 5");
  CHECK(Message(Five(0).Lead(Version(5), Version(6)).status()) ==
        "version 6 is not in the log, which retains 5 to 5");
  CHECK(Message(RetainedChain(1000, 2).Lead(Version(1), Version(2)).status()) ==
        "version 2 is not in the log, which is empty");
  CHECK(Message(Five(2).Lead(Version(1), Version(3)).status()) ==
        "no delta leads from version 1 to 3: the log retains 4 to 5; take full tensors");
}

TEST_CASE("the oldest versions are dropped past a limit and the newest is kept", "[protocol]") {
  RetainedChain chain(25, 3);
  CHECK(chain.Append(Version(1), std::nullopt, 10) == 0);
  CHECK(chain.Append(Version(2), Version(1), 10) == 0);
  CHECK(chain.Append(Version(3), Version(2), 10) == 1);  // bytes
  CHECK(chain.Append(Version(4), Version(3), 1) == 0);
  CHECK(chain.Append(Version(5), Version(4), 1) == 1);  // versions
  CHECK(chain.Append(Version(6), Version(5), 99) == 3);
  CHECK(chain.size() == 1);
  CHECK(chain.bytes() == 99);
}

}  // namespace dws
