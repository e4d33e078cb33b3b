// A trainer with its senders behind the receiver's two seams, in memory: publishes versions of
// random weights, is the source of deltas and full tensors, records the calls, and fails or damages
// data on request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/threads/mutex.h"
#include "common/delta/encoder.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/object.h"
#include "common/model/limits.h"
#include "common/sources/source_chain.h"
#include "common/spool/fetched_object.h"
#include "common/spool/full_assembly.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/weights/layout_set.h"
#include "tests/common/delta/objects.h"

namespace dws {

using SliceBytes = std::vector<std::byte>;
using RankBytes = std::vector<SliceBytes>;  // by rank slice, in slice order

inline std::shared_ptr<const RankLayout> MakeRankLayout(std::vector<Shard> shards) {
  auto layout = RankLayout::Create(std::move(shards));
  DWS_CHECK(layout.ok());
  return std::make_shared<const RankLayout>(*std::move(layout));
}

// Threads: the methods of Senders and Source from any; the others from the test's, with no call in
// flight.
class FakeTrainer final : public Senders, public Source {
 public:
  explicit FakeTrainer(std::vector<std::shared_ptr<const RankLayout>> ranks,
                       uint64_t incarnation = 1)
      : ranks_(std::move(ranks)), stream_{.incarnation = incarnation, .id_hi = 7, .id_lo = 8} {
    auto set = LayoutSet::Create(ranks_);
    DWS_CHECK(set.ok());
    layouts_ = *std::move(set);
    for (const auto& rank : ranks_) {
      RankBytes bytes;
      for (const auto& slice : rank->slices()) {
        SliceBytes content(slice.size_bytes());
        for (std::byte& byte : content) byte = static_cast<std::byte>(random_());
        bytes.push_back(std::move(content));
      }
      current_.push_back(std::move(bytes));
    }
  }

  const LayoutSetPtr& layouts() const { return layouts_; }
  // This as the only source.
  SourceChain& sources() { return sources_; }
  const StreamId& stream() const { return stream_; }
  const std::vector<std::shared_ptr<const RankLayout>>& ranks() const { return ranks_; }
  std::vector<RankBytes>& current() { return current_; }
  const RankBytes& At(uint64_t version, uint32_t rank) const {
    return published_.at(version)[rank];
  }
  uint64_t newest() const { return published_.empty() ? 0 : published_.rbegin()->first; }

  // Flips the low bit of about `density` of the elements (0: keeps only what the test
  // changed in current()), then publishes that as a new version.
  uint64_t Publish(double density = 0.01) {
    for (RankBytes& rank : current_) {
      for (SliceBytes& slice : rank) {
        if (density == 0) continue;
        const auto count = static_cast<size_t>(static_cast<double>(slice.size()) / 2 * density) + 1;
        for (size_t i = 0; i < count && !slice.empty(); ++i) {
          slice[random_() % slice.size()] ^= std::byte{1};
        }
      }
    }
    published_[newest() + 1] = current_;
    return newest();
  }
  // Acts like a sender that restarts from an older copy of its state: versions above `version`
  // are forgotten, and their numbers are used again.
  void GoBackTo(uint64_t version) {
    published_.erase(published_.upper_bound(version), published_.end());
  }

  SyncTarget Target(uint64_t version) const {
    SyncTarget target{.stream = stream_, .version = WeightVersion(version), .ranks = {}};
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      target.ranks.push_back(
          {.sender = SenderIndex(r), .nonce = 100 + version, .layout = ranks_[r]});
    }
    return target;
  }

  std::vector<Digest> Digests(uint64_t version, uint32_t rank) const {
    std::vector<Digest> digests;
    for (uint32_t s = 0; s < ranks_[rank]->slice_count(); ++s) {
      digests.push_back(
          DigestBytes(At(version, rank)[s], ranks_[rank]->slice(RankSlice(s)).first_word));
    }
    return digests;
  }

  std::vector<std::byte> Object(uint32_t rank, uint64_t base, uint64_t version) const {
    const RankLayout& layout = *ranks_[rank];
    const RankBytes& before = At(base, rank);
    const RankBytes& after = At(version, rank);
    samples::Encoding encoding = samples::EncodeState(layout, before, after, {});
    if (classes.has_value()) {
      samples::SplitEveryBlock(layout, before, after, *classes, encoding);
    }
    DeltaManifest identity = samples::Identity(layout, encoding, base);
    identity.stream = stream_;
    identity.trainer_rank = TrainerRank(rank);
    identity.version = WeightVersion(version);
    return samples::SealObject(encoding, std::move(identity));
  }

  // The actions of the receiver, in order: "object 1->2", "full 2 {0,1}", "staged 2", "committed
  // 2", "rejected 2".
  std::vector<std::string> Log() const {
    MutexLock lock(mutex_);
    return log_;
  }
  void ClearLog() {
    MutexLock lock(mutex_);
    log_.clear();
  }
  std::vector<Rejection> rejections;  // read with no call in flight; so is this:
  CommittedReport last_report;

  // The results of the next fetches.
  std::optional<ClassTable> classes;  // if set, blocks of floats are class-split with it
  Status fail_objects;
  Status fail_full;
  Status refuse_full;  // as fail_full, and the sender is told
  std::function<void(std::vector<std::byte>&)> damage_object = [](auto&) {};
  std::function<void(std::vector<std::byte>&)> damage_full_block = [](auto&) {};

  std::string_view name() const override { return "trainer"; }
  bool brings(Content) const override { return true; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool_options) override {
    const auto& [target, rank] = piece;
    Spool::Options options = spool_options;
    const uint64_t base = want.base.value();
    Note(fmt::format("object {}->{}", base, target.version.value()));
    DWS_RETURN_IF_ERROR(fail_objects);
    if (!published_.contains(base)) return AbortedError("version {} is gone", base);
    std::vector<std::byte> object = Object(rank.value(), base, target.version.value());
    damage_object(object);
    object = samples::PartOf(object, *ranks_[rank.value()], want.slices);
    options.size_bytes_expected = object.size();
    Spool spool(std::move(options));
    DWS_RETURN_IF_ERROR(spool.Append(object));
    return DeltaRead::Object(std::move(spool));
  }

  // While versions are captured: what happens between their last frame and the object's start,
  // which the publication then has. Unset: nothing is fetched early.
  std::function<Status()> while_early;
  size_t early_frames_max = SIZE_MAX;  // that are fetched early
  bool reads_captures(Content content, const Piece&) const override {
    return content == Content::kDelta && static_cast<bool>(while_early);
  }
  Result<std::vector<std::byte>> ReadDeltaCapture(const Piece& piece, const DeltaWant& want,
                                                  const Spool::Options& options,
                                                  const FrameTaker& take) override {
    const auto& [target, rank] = piece;
    const uint64_t base = want.base.value();
    const uint64_t version = target.version.value();
    Note(fmt::format("early {}->{}", base, version));
    std::vector<std::byte> object = Object(rank.value(), base, version);
    damage_object(object);
    const auto spooled = [&options](ByteSpan bytes) -> Result<Spool> {
      Spool::Options sized = options;
      sized.size_bytes_max = bytes.size();
      Spool spool(std::move(sized));
      DWS_RETURN_IF_ERROR(spool.Append(bytes));
      return spool;
    };
    DWS_ASSIGN_OR_RETURN(const Spool whole, spooled(object));
    DWS_ASSIGN_OR_RETURN(const FetchedObject parsed, ParseObject(whole, *ranks_[rank.value()]));
    // The last slice first, and each frame by itself.
    std::vector<SpooledFrame> frames = parsed.frames;
    std::stable_sort(frames.begin(), frames.end(),
                     [](const auto& a, const auto& b) { return b.slice < a.slice; });
    frames.resize(std::min(frames.size(), early_frames_max));
    for (SpooledFrame& frame : frames) {
      if (!Selects(want.slices, frame.slice)) continue;
      DWS_ASSIGN_OR_RETURN(const Spool spool, spooled(ByteSpan(object).subspan(
                                                  frame.spool_offset, frame.entry.size_bytes)));
      frame.spool_offset = 0;
      DWS_RETURN_IF_ERROR(take(std::span(&frame, 1), spool));
    }
    DWS_RETURN_IF_ERROR(while_early());
    object = Object(rank.value(), base, version);
    DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(object));
    object.resize(header.total_bytes() - header.frames_bytes);
    return object;
  }

  Result<Description> Describe(const SyncTarget& target, TrainerRank rank) override {
    Note(fmt::format("describe {}", target.version.value()));
    Description description{.slices = Digests(target.version.value(), rank.value()),
                            .state_token = {}};
    description.state_token = StateToken(description.slices);
    return description;
  }

  // What is missing, a block at a time.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override {
    const auto& [target, rank] = piece;
    DWS_RETURN_IF_ERROR(fail_full);
    if (!refuse_full.ok()) {
      assembly.Refuse(refuse_full);
      return UnavailableError("{}", Message(refuse_full));
    }
    std::string numbers;
    size_t blocks = 0;
    for (const BlockRange& range : assembly.Missing()) {
      numbers += (numbers.empty() ? "" : ",") + std::to_string(range.slice.value());
      const auto& entry = assembly.layout().slice(range.slice);
      const SliceBytes& bytes = At(target.version.value(), rank.value())[range.slice.value()];
      for (uint32_t b = range.first_block; b < range.first_block + range.block_count; ++b) {
        if (assembly.direct()) DWS_RETURN_IF_ERROR(while_direct(blocks++));
        const ByteSpan block = Block(entry, bytes, b);
        std::vector<std::byte> sent(block.begin(), block.end());
        damage_full_block(sent);
        DWS_RETURN_IF_ERROR(
            assembly.Take({.slice = range.slice, .first_block = b, .block_count = 1}, sent));
      }
    }
    Note(fmt::format("full {} {{{}}}", target.version.value(), numbers));
    return OkStatus();
  }
  // Before each block that is written at once to memory that an engine does not use yet.
  std::function<Status(size_t block)> while_direct = [](size_t) { return OkStatus(); };

  void Staged(const SyncTarget& target, TrainerRank) override {
    Note(fmt::format("staged {}", target.version.value()));
  }
  void Committed(const SyncTarget& target, TrainerRank, const CommittedReport& report) override {
    Note(fmt::format("committed {}", target.version.value()));
    MutexLock lock(mutex_);
    last_report = report;
  }
  void Rejected(const SyncTarget& target, TrainerRank, const Rejection& rejection) override {
    Note(fmt::format("rejected {}", target.version.value()));
    MutexLock lock(mutex_);
    rejections.push_back(rejection);
  }

 private:
  static ByteSpan Block(const RankLayout::SliceEntry& slice, const SliceBytes& bytes,
                        uint32_t block) {
    const uint64_t element_bytes = ElementBytes(slice.dtype);
    return ByteSpan(bytes).subspan(uint64_t{block} * limits::kBlockElements * element_bytes,
                                   BlockElements(slice.elements, block) * element_bytes);
  }
  void Note(std::string what) {
    MutexLock lock(mutex_);
    log_.push_back(std::move(what));
  }

  const std::vector<std::shared_ptr<const RankLayout>> ranks_;
  const StreamId stream_;
  LayoutSetPtr layouts_;
  std::mt19937_64 random_{20240501};
  std::vector<RankBytes> current_;
  std::map<uint64_t, std::vector<RankBytes>> published_;
  mutable Mutex mutex_;
  std::vector<std::string> log_ GUARDED_BY(mutex_);
  SourceChain sources_{{this}, {}};
};

}  // namespace dws
