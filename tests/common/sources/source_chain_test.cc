// The order of sources, what one leaves to the next, and what is told about it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/common/sources/chain_case.h"

namespace dws {

using Catch::Matchers::Contains;

TEST_CASE("a delta comes from the first source that has it", "[sources]") {
  ChainCase it;
  it.second.delta_bytes = 10;
  it.third.delta_bytes = 30;
  SourceChain chain = it.Chain({&it.first, &it.second, &it.third});
  SECTION("it does not have it") {}
  SECTION("it fails") { it.first.fails = DataLossError("broken"); }
  const auto object = it.Object(chain);
  REQUIRE(object.ok());
  CHECK(object->size_bytes() == 10);
  CHECK(it.third.asked == 0);
  const SourceChain::Last last = chain.last(SenderIndex(0), Content::kDelta);
  CHECK(last.source == "second");
  CHECK(last.detail == "detail of second");
  CHECK(last.reason == (it.first.fails.ok() ? "first: not here" : "first: broken"));
  CHECK(it.Came(chain, "second", Content::kDelta) == 10);
  CHECK(it.Came(chain, "first", Content::kDelta) == 0);
  CHECK(it.Came(chain, "second", Content::kFull) == 0);
}

TEST_CASE("the last source's error is the chain's, and some errors end it at once", "[sources]") {
  ChainCase it;
  SourceChain chain = it.Chain({&it.first, &it.second});
  it.first.fails = UnavailableError("away");
  it.second.fails = AbortedError("not retained");
  it.first.blocks_max = it.second.blocks_max = 0;
  CHECK(it.Object(chain).status() == it.second.fails);
  CHECK(it.Full(chain) == it.second.fails);
  const int asked = it.second.asked;
  it.first.fails = GENERATE(CancelledError("not wanted"), ResourceExhaustedError("no room"));
  CHECK(it.Object(chain).status() == it.first.fails);
  CHECK(it.second.asked == asked);
}

TEST_CASE("a source that keeps deltas gets what a later one brings", "[sources]") {
  ChainCase it;
  it.first.keeps = true;
  SourceChain chain = it.Chain({&it.first, &it.second});
  SECTION("it comes") {
    it.second.delta_bytes = 20;
    CHECK(it.Object(chain).ok());
    CHECK(it.first.kept == 20);
  }
  SECTION("nothing comes") {
    it.second.fails = UnavailableError("away");
    CHECK_FALSE(it.Object(chain).ok());
    CHECK(it.first.kept == 0);
  }
  CHECK(it.first.released == 1);  // the next one may fetch
}

TEST_CASE("each source brings what the ones before have left", "[sources]") {
  ChainCase it;
  it.first.blocks_max = 1;
  it.second.blocks_max = 2;
  SECTION("they say so") {}
  SECTION("they fail") { it.first.fails = it.second.fails = UnavailableError("broke"); }
  SourceChain chain = it.Chain({&it.first, &it.second, &it.third});
  REQUIRE(it.Full(chain).ok());
  CHECK(it.Came(chain, "first", Content::kFull) == kBlockBytes);
  CHECK(it.Came(chain, "second", Content::kFull) == 2 * kBlockBytes);
  CHECK(it.Came(chain, "third", Content::kFull) == kBlockBytes);
  const SourceChain::Last last = chain.last(SenderIndex(0), Content::kFull);
  CHECK(last.source == "second");  // that brought most
  CHECK_THAT(last.reason, Contains("first: ") && Contains("; second: "));
}

TEST_CASE("a slice that a source brought wrong comes from the next one", "[sources]") {
  ChainCase it;
  it.first.lies = [](const BlockRange& block) { return block.slice == RankSlice(1); };
  SourceChain chain = it.Chain({&it.first, &it.second});
  REQUIRE(it.Full(chain).ok());
  CHECK(it.Came(chain, "first", Content::kFull) == 2 * kBlockBytes);
  CHECK(it.Came(chain, "second", Content::kFull) == 2 * kBlockBytes);
  CHECK_THAT(chain.last(SenderIndex(0), Content::kFull).reason,
             Contains("1 slices are not as published, the first is of 'b'"));
}

TEST_CASE("a slice that two sources have filled comes again from the last one, once", "[sources]") {
  ChainCase it;
  it.first.blocks_max = 1;
  it.first.lies = [](const BlockRange&) { return true; };
  SourceChain chain = it.Chain({&it.first, &it.second});
  SECTION("it is right then") {
    REQUIRE(it.Full(chain).ok());
    CHECK(it.second.asked == 2);
  }
  SECTION("it is not: the caller finds that") {
    it.second.lies = [](const BlockRange& block) { return block.slice == RankSlice(0); };
    const auto full = chain.Full(
        it.piece, {.layout = it.layout, .slices = it.slices, .expected = it.expected}, it.options);
    CHECK(full.ok());
    CHECK(it.second.asked == 2);
  }
}

TEST_CASE("what one reader of a sender's memory finds changed another one does not look for",
          "[sources]") {
  ChainCase it;
  Scripted memory("memory", true), other("other", true);
  memory.blocks_max = 1;
  SourceChain chain = it.Chain({&memory, &other, &it.third});
  REQUIRE(it.Full(chain).ok());
  CHECK(other.asked == 0);
  CHECK_THAT(chain.last(SenderIndex(0), Content::kFull).reason,
             Contains("3 blocks are missing: the trainer has changed them since"));
  memory.fails = UnavailableError("no such memory");
  REQUIRE(it.Full(chain).ok());
  CHECK(other.asked == 1);
}

TEST_CASE("with one source required no byte comes from another", "[sources]") {
  ChainCase it;
  Scripted memory("memory", true);
  const bool all = GENERATE(false, true);
  if (!all) memory.blocks_max = 1;
  SourceChain chain = it.Chain({&it.first, &memory, &it.third}, "memory");
  const Status read = it.Full(chain);
  CHECK(it.first.asked + it.third.asked == 0);
  if (all) {
    CHECK(read.ok());
    CHECK(it.refusals.empty());
    return;
  }
  CHECK(absl::IsUnavailable(read));
  CHECK_THAT(std::string(Message(read)),
             Contains("full tensors of trainer-0:7700 may come by memory only, which brought "
                      "131072 of 524288 bytes of version 7: 3 blocks are missing"));
  REQUIRE(it.refusals.size() == 1);
  CHECK(it.refusals[0] == read);
  CHECK(chain.last(SenderIndex(0), Content::kFull).reason == Message(read));
  // Deltas are not concerned.
  it.first.delta_bytes = 1;
  CHECK(it.Object(chain).ok());
}

TEST_CASE("while a version is captured the best source that reads captures is read", "[sources]") {
  ChainCase it;
  it.first.captures = it.second.captures = true;
  it.first.blocks_max = 3;
  int looks = 0;
  EarlyVersion early{.stage =
                         [&] {
                           return ++looks < 3 ? EarlyVersion::Stage::kCapturing
                                              : EarlyVersion::Stage::kPublished;
                         },
                     .describe = [] { return OkStatus(); }};
  SourceChain chain = it.Chain({&it.first, &it.second});
  CHECK(chain.reads_captures(Content::kFull, it.piece));
  SECTION("it brings what it can, the rest comes when it is published") {
    REQUIRE(it.Full(chain, &early).ok());
    CHECK(it.first.captured == 1);
    CHECK(it.second.captured == 0);
  }
  SECTION("where it fails the next one is read") {
    it.first.fails = UnavailableError("not on this host");
    REQUIRE(it.Full(chain, &early).ok());
    CHECK(it.second.captured == 1);
    CHECK(it.Came(chain, "first", Content::kFull) == 3 * kBlockBytes);
    CHECK(it.Came(chain, "second", Content::kFull) == kBlockBytes);
    CHECK(chain.last(SenderIndex(0), Content::kFull).reason == "first: not on this host");
  }
  SECTION("what a capture that was given up has left comes again") {
    it.first.lies = [](const BlockRange& block) { return block.slice == RankSlice(0); };
    REQUIRE(it.Full(chain, &early).ok());
    CHECK(it.Came(chain, "first", Content::kFull) + it.Came(chain, "second", Content::kFull) ==
          4 * kBlockBytes);
  }
  SECTION("a better source that does not read captures is waited for") {
    it.first.captures = false;
    CHECK_FALSE(chain.reads_captures(Content::kFull, it.piece));
    REQUIRE(it.Full(chain, &early).ok());
    CHECK(it.second.captured == 0);
  }
  SECTION("a version that is gone is no error of a source") {
    early.stage = [] { return EarlyVersion::Stage::kGone; };
    CHECK_THAT(ToString(it.Full(chain, &early)), Contains("version 7 was not published"));
    CHECK(it.first.asked == 0);
  }
  SECTION("its description may fail") {
    early.describe = [] { return UnavailableError("no answer"); };
    CHECK_THAT(ToString(it.Full(chain, &early)), Contains("no answer"));
  }
}

TEST_CASE("bytes that the caller has are not counted, and what lacks them is not kept",
          "[sources]") {
  ChainCase it;
  it.first.keeps = true;
  it.second.delta_bytes = 20;
  SourceChain chain = it.Chain({&it.first, &it.second, &it.third});
  DeltaWant want{.base = WeightVersion(6), .slices = it.all, .old = nullptr, .skip_bytes = 15};
  REQUIRE(chain.Object(it.piece, want, it.options).ok());
  CHECK(it.Came(chain, "second", Content::kDelta) == 5);
  CHECK(it.first.kept == 0);
  CHECK(it.first.released == 1);
  want.skip_bytes = 25;  // the second is another object
  it.third.delta_bytes = 30;
  REQUIRE(chain.Object(it.piece, want, it.options).ok());
  CHECK(it.Came(chain, "third", Content::kDelta) == 5);
  it.third.delta_bytes = 20;
  CHECK(absl::IsDataLoss(chain.Object(it.piece, want, it.options).status()));
}

TEST_CASE("full tensors that cannot be kept here come from no other source", "[sources]") {
  class Full final : public DirectTarget {
   public:
    Status Write(TrainerRank, const BlockRange&, ByteSpan) override {
      return ++writes > 2 ? ResourceExhaustedError("the device has no memory") : OkStatus();
    }
    int writes = 0;
  };
  ChainCase it;
  Full device;
  SourceChain chain = it.Chain({&it.first, &it.second});
  const FullWant want{
      .layout = it.layout, .slices = it.slices, .expected = it.expected, .direct = &device};
  CHECK(absl::IsResourceExhausted(chain.Full(it.piece, want, it.options).status()));
  CHECK(it.second.asked == 0);
}

TEST_CASE("what one source has begun to write to live memory another one completes", "[sources]") {
  class Memory final : public DirectTarget {
   public:
    explicit Memory(size_t slices) : bytes(slices, std::vector<std::byte>(2 * kBlockBytes)) {}
    Status Write(TrainerRank, const BlockRange& blocks, ByteSpan from) override {
      std::copy(from.begin(), from.end(),
                bytes[blocks.slice.value()].begin() +
                    static_cast<ptrdiff_t>(blocks.first_block * kBlockBytes));
      return OkStatus();
    }
    std::vector<std::vector<std::byte>> bytes;
  };
  ChainCase it;
  it.first.blocks_max = 3;
  it.first.lies = [](const BlockRange& block) { return block.slice == RankSlice(0); };
  it.first.fails = UnavailableError("broke in the middle");
  Memory memory(it.layout.slice_count());
  SourceChain chain = it.Chain({&it.first, &it.second});
  const FullWant want{
      .layout = it.layout, .slices = it.slices, .expected = it.expected, .direct = &memory};
  const auto full = chain.Full(it.piece, want, it.options);
  REQUIRE(full.ok());
  CHECK(full->direct_bytes == 4 * kBlockBytes);
  for (uint32_t i = 0; i < 4; ++i) {
    const BlockRange block{.slice = RankSlice(i / 2), .first_block = i % 2, .block_count = 1};
    const auto at = memory.bytes[i / 2].begin() + static_cast<ptrdiff_t>(i % 2 * kBlockBytes);
    CHECK(std::equal(at, at + kBlockBytes, Bytes(block).begin()));
  }
}

TEST_CASE("a chain that is cancelled reads nothing, and all sources hear of a refusal",
          "[sources]") {
  ChainCase it;
  SourceChain chain = it.Chain({&it.first, &it.second});
  chain.Refused(it.piece);
  CHECK(it.first.refused + it.second.refused == 2);
  it.cancellation.Cancel();
  it.first.delta_bytes = 1;
  CHECK(absl::IsCancelled(it.Object(chain).status()));
  CHECK(absl::IsCancelled(it.Full(chain)));
  CHECK(it.first.asked == 0);
}

}  // namespace dws
