// What common/sources/source.h promises, of every source that a receiver can have: each is asked
// alone, as the only source of a chain, with a real sender behind it.
#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/transport/fabric/fabric_api.h"
#include "tests/common/delta/old_state.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/grpc_transport.h"
#include "tests/conformance/peer_side.h"
#include "tests/fakes/nccl/host_lane.h"

namespace dws {
namespace {

// A directory without a connection; "shared-dir" is one beside a connection.
constexpr std::string_view kAlone = "shared-dir alone";
constexpr DeltaLogLimits kRetained{.bytes_max = uint64_t{1} << 30, .versions_max = 3};

struct Kind {
  std::string_view name;
  bool delta = false;
  bool full = false;
  // What a read ends with once its receiver has stopped: OK where it finds what has come before.
  // Broadcasts are let go of.
  absl::StatusCode cancelled = absl::StatusCode::kCancelled;

  bool Is(std::string_view other) const { return name == other; }
  // Returns whether only the wanted slices come.
  bool part() const { return !Is("inline") && !Is("broadcast"); }
  // Returns whether it gives a delta away: it has it once.
  bool once() const { return Is("broadcast"); }
  bool file() const { return Is("shared-dir") || Is(kAlone) || Is("host-share"); }
  bool memory() const { return Is("same-host") || Is("fabric"); }
};
constexpr Kind kKinds[] = {
    {.name = "inline", .delta = true, .cancelled = absl::StatusCode::kOk},
    {.name = "broadcast", .delta = true, .cancelled = absl::StatusCode::kAborted},
    {.name = "shared-dir", .delta = true, .full = true},
    {.name = kAlone, .delta = true, .full = true},
    {.name = "host-share", .delta = true, .cancelled = absl::StatusCode::kOk},
    {.name = "device", .full = true},
    {.name = "same-host", .full = true},
    {.name = "fabric", .full = true},
    {.name = "peer", .full = true},
    {.name = "grpc", .delta = true, .full = true},
};

// With a whole sender and receiver ThreadSanitizer reports gRPC's own threads.
bool Runs(const Kind& kind) {
#if defined(__SANITIZE_THREAD__)
  return kind.Is(kAlone);
#else
  Status installed;
  if (kind.Is("fabric")) installed = FabricApi::Load().status();
  if (kind.Is("device") && cuda::TestDevice() == nullptr) installed = UnavailableError("no GPU");
  if (kind.Is("broadcast")) installed = nccl::NcclApi::Load().status();
  if (!installed.ok()) WARN("skipped " << kind.name << ": " << Message(installed));
  return installed.ok();
#endif
}

std::vector<Kind> Those(Content content) {
  std::vector<Kind> those;
  for (const Kind& kind : kKinds) {
    if ((content == Content::kDelta ? kind.delta : kind.full) && Runs(kind)) those.push_back(kind);
  }
  REQUIRE_FALSE(those.empty());
  return those;
}
Kind Each(Content content) { return GENERATE_COPY(from_range(Those(content))); }

const Clock& RealTime() {
  static const RealClock clock;
  return clock;
}

// A trainer's rank at version 1, a receiver, and one of its sources.
class Subject {
 public:
  explicit Subject(const Kind& given) : kind(given) {
    if (kind.Is(kAlone)) {
      auto shared = std::make_unique<SharedTransport>(kRetained.versions_max, 3);
      shared_ = shared.get();
      transport = std::move(shared);
    } else {
      Ways ways{.fabric = {.on = kind.Is("fabric"), .only = FabricProvider::kTcp},
                .directory = kind.Is("shared-dir"),
                .host_share = kind.Is("host-share"),
                .peers = kind.Is("peer"),
                .versions_max = kRetained.versions_max};
      if (kind.Is("broadcast")) {
        ways.broadcasts = {
            .api = *nccl::NcclApi::Load(), .lanes = nccl::HostLane::Source(), .clock = &RealTime()};
      }
      auto connected = std::make_unique<GrpcTransport>(std::move(ways));
      connected_ = connected.get();
      transport = std::move(connected);
    }
    transport->Registered(rank.state());
    if (kind.Is("peer")) peer.emplace(rank.state(), connected_->directory());
    if (kind.Is("device")) {
      gpu.emplace(*rank.state());
      gpu_target.emplace(rank.layout());
    }
    Publish(1);
    transport->StartReceiver();
    chain.emplace(std::vector<Source*>{&source()}, SourceChain::Options());
  }

  // Only small deltas come inside an announcement, and only others are broadcast.
  double density() const { return kind.Is("inline") ? 0.001 : 0.3; }
  void Publish(uint64_t version) {
    if (gpu.has_value()) gpu->Change();
    rank.Publish(version, density());
    if (gpu.has_value()) gpu->Update();
    transport->Published();
    if (peer.has_value()) peer->Publish(version, rank.At(version));
  }
  Follower MakeFollower() {
    Follower follower(rank.layout());
    if (gpu_target.has_value()) follower.Use(&*gpu_target);
    return follower;
  }
  SyncTarget Await(uint64_t version) { return Follower::Await(transport->subscription(), version); }
  Source& source() const {
    return shared_ != nullptr ? shared_->source() : connected_->source(kind.name);
  }
  Group alone() { return {.senders = transport->senders(), .sources = *chain}; }

  // The delta, as the source has it. A share has what another receiver of the host has left there.
  Result<Spool> Delta(const SyncTarget& target, const DeltaWant& want,
                      Spool::Options options = Follower::SpoolOptions()) {
    const Piece piece{.target = target, .rank = TrainerRank(0)};
    if (kind.Is("host-share") && want.skip_bytes == 0) {
      Cancellation cancellation;
      const auto other =
          HostShare::Open({.folder = connected_->share(), .job_id = "job"}, cancellation);
      REQUIRE(other.ok());
      (void)SourceChain({other->get(), &connected_->source("grpc")}, {})
          .Object(piece, want, Follower::SpoolOptions());
    }
    return chain->Object(piece, want, options);
  }
  Result<Spool> Delta(uint64_t base, uint64_t version,
                      const SliceSelection& slices = std::nullopt) {
    const samples::OldState old(rank.layout(), rank.At(base));
    return Delta(Await(version), {.base = WeightVersion(base), .slices = slices, .old = &old});
  }
  Status Full(const SyncTarget& target, const Description& described) {
    std::vector<RankSlice> slices;
    for (uint32_t s = 0; s < rank.layout().slice_count(); ++s) slices.emplace_back(s);
    return chain
        ->Full({.target = target, .rank = TrainerRank(0)},
               {.layout = rank.layout(),
                .slices = slices,
                .expected = described.slices,
                .device = gpu_target.has_value() ? &*gpu_target : nullptr},
               Follower::SpoolOptions())
        .status();
  }
  uint64_t bytes(Content content) const {
    uint64_t bytes = 0;
    for (const SourceChain::Total& total : chain->totals()) {
      if (total.content == content) bytes += total.bytes;
    }
    return bytes;
  }
  // Flips a bit of what the source reads; again: flips it back.
  void Damage(Content content, uint64_t version) {
    const RankState& state = *rank.state();
    if (kind.Is("shared-dir") || kind.Is(kAlone)) {
      PublishedFolder& folder = shared_ != nullptr ? shared_->folder() : connected_->folder();
      folder.Damage(state, version, content == Content::kDelta ? "delta" : "full");
    } else if (kind.Is("host-share")) {
      for (const auto& entry : std::filesystem::directory_iterator(connected_->share())) {
        if (entry.path().extension().empty()) FlipLastBit(entry.path());
      }
    } else if (content == Content::kDelta) {
      transport->Damage(state, version);
    } else if (gpu.has_value()) {
      gpu->Damage();
    } else if (peer.has_value()) {
      peer->Damage();
    } else {
      const_cast<SnapshotMemory&>(state.snapshot->memory()).content()[0] ^= std::byte{1};
    }
  }

  const Kind kind;
  Rank rank{kRetained};
  std::optional<GpuSide> gpu;  // of the sender
  std::optional<GpuTarget> gpu_target;
  std::unique_ptr<Transport> transport;
  std::optional<PeerSide> peer;  // the receiver that is read
  std::optional<SourceChain> chain;

 private:
  GrpcTransport* connected_ = nullptr;
  SharedTransport* shared_ = nullptr;
};

std::vector<std::byte> BytesOf(const Spool& spool) {
  std::vector<std::byte> buffer;
  const auto bytes = spool.Read(0, spool.size_bytes(), buffer);
  REQUIRE(bytes.ok());
  return {bytes->begin(), bytes->end()};
}

// Weights that are `object` applied to those of version `base`.
Weights Applied(const Subject& it, const Spool& object, uint64_t base) {
  Weights weights = it.rank.At(base);
  ApplyObject(it.rank.layout(), BytesOf(object), weights);
  return weights;
}

// Brings the first block of each slice, and a wrong one of the last.
class Half final : public Source {
 public:
  Half(const Weights& weights, bool lies) : weights_(weights), lies_(lies) {}
  std::string_view name() const override { return "half"; }
  bool brings(Content content) const override { return content == Content::kFull; }
  Status ReadFull(const Piece& /*piece*/, FullAssembly& assembly) override {
    for (const BlockRange& range : assembly.Missing()) {
      const BlockRange first{.slice = range.slice, .first_block = 0, .block_count = 1};
      const ByteSpan bytes =
          ByteSpan(weights_[range.slice.value()]).first(SizeBytes(assembly.layout(), first));
      std::vector<std::byte> copy(bytes.begin(), bytes.end());
      if (lies_ && range.slice == assembly.slices().back()) copy[0] ^= std::byte{1};
      DWS_RETURN_IF_ERROR(assembly.Take(first, copy));
      taken += copy.size();
    }
    return UnavailableError("that is all");
  }
  uint64_t taken = 0;

 private:
  const Weights& weights_;
  const bool lies_;
};

}  // namespace

TEST_CASE("every source of deltas brings the whole delta, bit for bit, and counts it",
          "[sources]") {
  Subject it(Each(Content::kDelta));
  INFO(it.kind.name);
  for (uint64_t version = 2; version <= 4; ++version) {
    it.Publish(version);
    const uint64_t before = it.bytes(Content::kDelta);
    const auto object = it.Delta(version - 1, version);
    INFO(ToString(object.status()));
    REQUIRE(object.ok());
    CHECK((Applied(it, *object, version - 1) == it.rank.At(version)));
    CHECK(it.bytes(Content::kDelta) - before == object->size_bytes());
    if (it.kind.once()) CHECK(absl::IsAborted(it.Delta(version - 1, version).status()));
  }
  CHECK(it.bytes(Content::kFull) == 0);
}

TEST_CASE("every source of full tensors brings all of them, bit for bit, and counts them",
          "[sources]") {
  Subject it(Each(Content::kFull));
  INFO(it.kind.name);
  Follower follower = it.MakeFollower();
  for (uint64_t version = 1; version <= 2; ++version) {
    if (version > 1) it.Publish(version);
    const Status read = follower.TakeFull(it.alone(), it.Await(version));
    INFO(ToString(read));
    REQUIRE(read.ok());
    CHECK((follower.weights() == it.rank.At(version)));
    CHECK(it.bytes(Content::kFull) == version * it.rank.layout().size_bytes());
  }
  CHECK(it.bytes(Content::kDelta) == 0);
}

TEST_CASE("of a delta the wanted slices come, and from most sources no others", "[sources]") {
  Subject it(Each(Content::kDelta));
  INFO(it.kind.name);
  const RankLayout& layout = it.rank.layout();
  uint64_t version = 1;
  for (const size_t every : {1, 2, 1000}) {
    CAPTURE(every);
    it.Publish(++version);
    const RetainedVersionPtr whole = it.rank.state()->log->Newest();
    std::vector<RankSlice> asked;
    for (size_t s = every - 1; s < layout.slice_count(); s += every) asked.emplace_back(s);
    const auto part = it.Delta(version - 1, version, asked);
    INFO(ToString(part.status()));
    REQUIRE(part.ok());
    const auto object = ParseObject(*part, layout, asked);
    REQUIRE(object.ok());
    CHECK(object->manifest.slices.size() == layout.slice_count());
    Weights weights = it.rank.At(version - 1);
    std::vector<std::byte> buffer;
    for (const SpooledFrame& frame : object->frames) {
      const auto bytes = part->Read(frame.spool_offset, frame.entry.size_bytes, buffer);
      REQUIRE(bytes.ok());
      ApplyFrame(layout, frame.slice, *bytes, frame.entry, weights, frame.classes);
    }
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const bool wanted = Selects(asked, RankSlice(s));
      CHECK((weights[s] == it.rank.At(wanted ? version : version - 1)[s]));
    }
    const uint64_t begin = object->frames_begin;
    uint64_t frames = 0;
    for (const SpooledFrame& frame : object->frames) frames += frame.entry.size_bytes;
    CHECK((part->size_bytes() == begin + frames) == (it.kind.part() || every == 1));
  }
}

TEST_CASE("what the caller has need not come again", "[sources]") {
  Subject it(Each(Content::kDelta));
  INFO(it.kind.name);
  it.Publish(2);
  const SyncTarget target = it.Await(2);
  DeltaWant want{.base = WeightVersion(1), .slices = std::nullopt};
  const auto whole = it.Delta(target, want);
  REQUIRE(whole.ok());
  want.skip_bytes = whole->size_bytes() - 1000;
  const auto rest = it.Delta(target, want);
  if (it.kind.once()) {
    CHECK(absl::IsAborted(rest.status()));
    return;
  }
  REQUIRE(rest.ok());
  REQUIRE(rest->size_bytes() == whole->size_bytes());
  const auto skip = static_cast<ptrdiff_t>(want.skip_bytes);
  const std::vector<std::byte> from = BytesOf(*whole), to = BytesOf(*rest);
  CHECK(std::equal(from.begin() + skip, from.end(), to.begin() + skip));
  CHECK(it.bytes(Content::kDelta) == whole->size_bytes() + 1000);
}

TEST_CASE("full tensors that are here in part are completed, and what is wrong is found",
          "[sources]") {
  Subject it(Each(Content::kFull));
  const bool lies = GENERATE(false, true);
  INFO(it.kind.name << ", " << lies);
  Half half(it.rank.At(1), lies);
  SourceChain chain({&half, &it.source()}, {});
  Follower follower = it.MakeFollower();
  const Status read =
      follower.TakeFull({.senders = it.transport->senders(), .sources = chain}, it.Await(1));
  // What reads a sender's memory is not asked twice.
  if (lies && it.kind.memory()) {
    CHECK_THAT(ToString(read), Catch::Matchers::Contains("1 slices are not as published"));
    return;
  }
  INFO(ToString(read));
  REQUIRE(read.ok());
  CHECK((follower.weights() == it.rank.At(1)));
  uint64_t came = 0;
  for (const SourceChain::Total& total : chain.totals()) {
    if (total.source == "half" && total.content == Content::kFull) CHECK(total.bytes == half.taken);
    came += total.bytes;
  }
  if (!lies) CHECK(came == it.rank.layout().size_bytes());
}

TEST_CASE("a delta that nobody wants is given up, for this caller only", "[sources]") {
  Subject it(Each(Content::kDelta));
  INFO(it.kind.name);
  it.Publish(2);
  const SyncTarget target = it.Await(2);
  const DeltaWant want{.base = WeightVersion(1), .slices = std::nullopt};
  Spool::Options options = Follower::SpoolOptions();
  options.wanted = [] { return false; };
  CHECK(absl::IsCancelled(it.Delta(target, want, options).status()));
  CHECK(it.bytes(Content::kDelta) == 0);
  if (!it.kind.once()) CHECK(it.Delta(target, want).ok());
}

TEST_CASE("a receiver that stops reads nothing more", "[sources]") {
  const Content content = GENERATE(Content::kDelta, Content::kFull);
  Subject it(Each(content));
  INFO(it.kind.name << ", " << ToString(content));
  it.Publish(2);
  const SyncTarget target = it.Await(2);
  const auto described = it.transport->senders().Describe(target, TrainerRank(0));
  REQUIRE(described.ok());
  if (it.kind.Is("host-share")) REQUIRE(it.Delta(1, 2).ok());
  it.transport->CancelFetches();
  const Status read =
      content == Content::kDelta ? it.Delta(1, 2).status() : it.Full(target, *described);
  INFO(ToString(read));
  CHECK(it.kind.cancelled == read.code());
}

TEST_CASE("what is damaged is never taken for the version", "[sources]") {
  const Content content = GENERATE(Content::kDelta, Content::kFull);
  Subject it(Each(content));
  INFO(it.kind.name << ", " << ToString(content));
  Follower follower = it.MakeFollower();
  uint64_t version = 1;
  if (content == Content::kDelta) {
    REQUIRE(follower.Follow(it.transport->group(), it.transport->subscription(), 1) == "full");
    it.rank.Publish(++version, it.density());
    // A file is there once the version is told.
    if (!it.kind.file()) it.Damage(content, version);
    it.transport->Published();
    if (it.kind.Is("host-share")) REQUIRE(it.Delta(1, 2).ok());
    if (it.kind.file()) it.Damage(content, version);
  } else {
    it.Damage(content, version);
  }
  const Weights before = follower.weights();
  const std::string outcome = follower.Follow(it.alone(), it.transport->subscription(), version);
  CHECK(outcome != "delta");
  // What is in a share is compared there, with what its writer left: it is as if it had nothing.
  const bool found = content == Content::kDelta && !it.kind.Is("host-share");
  CHECK(follower.rejected() == (found ? 1 : 0));
  // Full tensors are not made of the damaged delta, but in a directory.
  const bool repaired = content == Content::kDelta && it.kind.Is("grpc");
  CHECK((outcome == "full") == repaired);
  CHECK((follower.weights() == (repaired ? it.rank.At(version) : before)));

  it.Damage(content, version);  // mended
  (void)follower.TakeFull(it.transport->group(), it.Await(version));
  CHECK((follower.weights() == it.rank.At(version)));
}

TEST_CASE("a version that is gone is ABORTED, or its memory has changed", "[sources]") {
  const Content content = GENERATE(Content::kDelta, Content::kFull);
  Subject it(Each(content));
  INFO(it.kind.name << ", " << ToString(content));
  const SyncTarget first = it.Await(1);
  const auto described = it.transport->senders().Describe(first, TrainerRank(0));
  REQUIRE(described.ok());
  for (uint64_t version = 2; version <= 10; ++version) it.Publish(version);
  const Status read =
      content == Content::kDelta ? it.Delta(1, 10).status() : it.Full(first, *described);
  INFO(ToString(read));
  CHECK((it.kind.memory() ? absl::IsUnavailable(read) : absl::IsAborted(read)));
  CHECK(it.bytes(content) == 0);
}

}  // namespace dws
