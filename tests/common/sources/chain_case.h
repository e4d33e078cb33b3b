// Sources that do as a test says, and what is asked of them: two tensors of a version.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/block_range.h"
#include "common/sources/source_chain.h"

namespace dws {

inline constexpr uint64_t kBlockBytes = uint64_t{limits::kBlockElements} * 2;

// Two tensors of two blocks each.
inline RankLayout Layout() {
  auto layout = RankLayout::Create(
      {Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {131'072}, .cuts = {}}),
       Shard::Whole({.name = "b", .dtype = DType::kBF16, .shape = {131'072}, .cuts = {}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

inline std::vector<std::byte> Bytes(const BlockRange& block) {
  return std::vector<std::byte>(
      kBlockBytes, static_cast<std::byte>(1 + 2 * block.slice.value() + block.first_block));
}

// A source that does as the test says, and counts what it is asked.
class Scripted final : public Source {
 public:
  explicit Scripted(std::string name, bool memory = false)
      : name_(std::move(name)), memory_(memory) {}

  std::string_view name() const override { return name_; }
  bool brings(Content) const override { return true; }
  bool reads_memory() const override { return memory_; }
  bool reads_captures(Content, const Piece&) const override { return captures; }
  Result<DeltaRead> ReadDelta(const Piece&, const DeltaWant&,
                              const Spool::Options& options) override {
    ++asked;
    DWS_RETURN_IF_ERROR(fails);
    DeltaRead read = DeltaRead::Without("not here");
    if (keeps) {
      read.keep = [this, held = std::shared_ptr<int>(&held_, [this](int*) { ++released; })](
                      const Spool& object) { kept += object.size_bytes(); };
    }
    if (delta_bytes == 0) return read;
    Spool spool(options);
    DWS_RETURN_IF_ERROR(spool.Append(std::vector<std::byte>(delta_bytes)));
    read.object = std::move(spool);
    return read;
  }
  Status ReadFull(const Piece&, FullAssembly& assembly) override {
    ++asked;
    return Fill(assembly);
  }
  Status ReadFullCapture(const Piece&, FullAssembly& assembly) override {
    ++captured;
    return Fill(assembly);
  }
  void Refused(const Piece&) override { ++refused; }
  std::string detail(SenderIndex) const override { return "detail of " + name_; }

  size_t delta_bytes = 0;  // 0: it does not have the delta
  bool keeps = false;
  size_t blocks_max = SIZE_MAX;  // that it brings each time; of memory: in all
  std::function<bool(const BlockRange&)> lies = [](const BlockRange&) { return false; };
  bool captures = false;
  Status fails;  // after it has brought what it brings

  int asked = 0;
  int captured = 0;
  int refused = 0;
  int released = 0;
  uint64_t kept = 0;

 private:
  Status Fill(FullAssembly& assembly) {
    size_t brought = 0;
    for (const BlockRange& range : assembly.Missing()) {
      for (uint32_t i = 0; i < range.block_count && brought < blocks_max; ++i, ++brought) {
        const BlockRange block{
            .slice = range.slice, .first_block = range.first_block + i, .block_count = 1};
        std::vector<std::byte> bytes = Bytes(block);
        if (lies(block)) bytes[7] ^= std::byte{1};
        DWS_RETURN_IF_ERROR(assembly.Take(block, bytes));
      }
    }
    if (memory_) blocks_max -= brought;
    return fails;
  }

  const std::string name_;
  const bool memory_;
  int held_ = 0;
};

struct ChainCase {
  ChainCase() {
    target.version = WeightVersion(7);
    target.ranks.push_back({.sender = SenderIndex(0), .nonce = 1});
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      slices.emplace_back(s);
      Digest digest;
      for (uint32_t b = 0; b < 2; ++b) {
        digest += DigestBytes(Bytes({.slice = RankSlice(s), .first_block = b, .block_count = 1}),
                              layout.slice(RankSlice(s)).BlockFirstWord(b));
      }
      expected.push_back(digest);
    }
  }

  SourceChain Chain(std::vector<Source*> sources, std::optional<std::string> only = {}) {
    return SourceChain(std::move(sources), {.senders = {"trainer-0:7700"},
                                            .only_full = std::move(only),
                                            .cancellation = &cancellation});
  }
  Result<Spool> Object(SourceChain& chain) {
    return chain.Object(piece, {.base = WeightVersion(6), .slices = all}, options);
  }
  Status Full(SourceChain& chain, const EarlyVersion* early = nullptr) {
    const auto full = chain.Full(piece,
                                 {.layout = layout,
                                  .slices = slices,
                                  .expected = expected,
                                  .early = early,
                                  .refuse = &refuse},
                                 options);
    if (!full.ok()) return full.status();
    std::vector<std::byte> buffer;
    const auto bytes = full->spool.Read(0, full->spool.size_bytes(), buffer);
    REQUIRE(bytes.ok());
    for (uint32_t i = 0; i < 4; ++i) {
      CHECK((*bytes)[i * kBlockBytes + 7] == static_cast<std::byte>(1 + i));
    }
    return OkStatus();
  }
  static uint64_t Came(const SourceChain& chain, std::string_view source, Content content) {
    for (const SourceChain::Total& total : chain.totals()) {
      if (total.source == source && total.content == content) return total.bytes;
    }
    return UINT64_MAX;
  }

  const RankLayout layout = Layout();
  SyncTarget target;
  const Piece piece{.target = target, .rank = TrainerRank(0)};
  const SliceSelection all;
  std::vector<RankSlice> slices;
  std::vector<Digest> expected;
  std::vector<Status> refusals;
  const std::function<void(const Status&)> refuse = [this](const Status& why) {
    refusals.push_back(why);
  };
  Cancellation cancellation;
  Spool::Options options{
      .folder = "/tmp", .memory_bytes_max = uint64_t{1} << 22, .size_bytes_max = uint64_t{1} << 22};
  Scripted first{"first"}, second{"second"}, third{"third"};
};

}  // namespace dws
