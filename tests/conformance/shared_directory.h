// A shared directory in memory with its sender, for tests of its faults and recovery.
#pragma once

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"
#include "common/transport/shared_fs/names.h"
#include "receiver_daemon/transfer/shared/shared_source.h"
#include "sender_daemon/shared/shared_publisher.h"
#include "tests/conformance/rank.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/sender_daemon/object_apply.h"

namespace dws {

// Real time plus the time that a test lets pass.
class PassingClock final : public Clock {
 public:
  TimePoint Now() const override { return real_.Now() + Duration(passed_.load()); }
  void Pass(Duration time) { passed_ += time.count(); }

 private:
  RealClock real_;
  std::atomic<Duration::rep> passed_{0};
};

struct Directory {
  explicit Directory(size_t anchor_every = 32, shared::Key sender_key = {}, bool from_base = false,
                     DeltaLogLimits retained = {.bytes_max = uint64_t{1} << 30, .versions_max = 64},
                     DeltaProfile profile = DeltaProfile::kWan)
      : rank(retained),
        publisher({.dir = {.root = "/root",
                           .anchor_every = anchor_every,
                           .profile = profile,
                           .from_base = from_base},
                   .job_id = "job",
                   .trainer_rank = TrainerRank(0),
                   .key = std::move(sender_key)},
                  files, hub, [](const v1::SharedReport&, bool) {}) {
    hub.Welcome(rank.state());
  }
  ~Directory() {
    publisher.Stop();
    hub.Stop();
  }

  Status Publish(uint64_t version) {
    rank.Publish(version);
    return Write();
  }
  Status Write() {
    publisher.Offer(rank.state());
    while (true) {
      const Result<bool> more = publisher.Step();
      if (!more.ok()) return more.status();
      if (!*more) return OkStatus();
    }
  }
  SharedSource Source(shared::Key key = {}, std::string job_id = "job") {
    return SharedSource(files,
                        {.root = "/root",
                         .job_id = std::move(job_id),
                         .rank = TrainerRank(0),
                         .key = std::move(key),
                         .pool = &pool,
                         .retry_delay = std::chrono::microseconds(1)},
                        cancellation);
  }
  // What a newly started receiver gets as `version`, in full.
  Result<Weights> Read(uint64_t version) {
    SharedSource source = Source();
    const auto offer = source.Look(std::nullopt);
    if (!offer.ok()) return offer.status();
    std::vector<RankSlice> slices;
    Weights weights;
    for (uint32_t s = 0; s < rank.layout().slice_count(); ++s) {
      slices.emplace_back(s);
      weights.emplace_back(rank.layout().slice(RankSlice(s)).size_bytes());
    }
    const std::vector<Digest> expected(slices.size());  // the caller compares
    const FullWant want{.layout = rank.layout(), .slices = slices, .expected = expected};
    const auto assembly = FullAssembly::Create(want, {.folder = "/tmp",
                                                      .memory_bytes_max = uint64_t{1} << 24,
                                                      .size_bytes_max = limits::kObjectBytesMax});
    REQUIRE(assembly.ok());
    DWS_RETURN_IF_ERROR(source.Full(rank.state()->stream, WeightVersion(version), **assembly));
    const FetchedFull full = (*assembly)->Finish();
    std::vector<std::byte> buffer;
    for (const SpooledFrame& frame : full.frames) {
      const auto bytes = full.spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer);
      const BlockRange range{.slice = frame.slice, .first_block = frame.entry.first_block};
      std::copy(bytes->begin(), bytes->end(),
                weights[frame.slice.value()].begin() +
                    static_cast<ptrdiff_t>(FirstByte(rank.layout(), range)));
    }
    return weights;
  }
  std::vector<uint64_t> Offered() {
    const auto offer = Source().Look(std::nullopt);
    std::vector<uint64_t> versions;
    if (!offer.ok()) return versions;
    for (const WeightVersion version : offer->versions) versions.push_back(version.value());
    return versions;
  }
  std::string Folder(uint64_t version) {
    return fmt::format("/root/job/rank-00000/{}/{}", shared::StreamName(rank.state()->stream),
                       shared::VersionFolderName(
                           {.version = WeightVersion(version), .epoch = rank.state()->rank_epoch}));
  }
  std::string WelcomePath() {
    return fmt::format("/root/job/rank-00000/{}/{}", shared::StreamName(rank.state()->stream),
                       shared::WelcomeName(rank.state()->rank_epoch));
  }
  void Move(const std::string& from, const std::string& to) {
    const std::vector<std::string> names = *files.List(from);
    for (const std::string& name : names) {
      files.SetContent(to + "/" + name, files.Content(from + "/" + name));
    }
  }
  void Remove(uint64_t version) {
    const std::vector<std::string> names = *files.List(Folder(version));
    for (const std::string& name : names) {
      REQUIRE(files.Remove(fmt::format("{}/{}", Folder(version), name)).ok());
    }
    REQUIRE(files.RemoveFolder(Folder(version)).ok());
  }
  std::string Refusal(SharedSource source) {
    return std::string(Message(source.Look(std::nullopt).status()));
  }
  // Writes a receiver's report there.
  void Leave(v1::SharedReport report) {
    report.set_protocol_major(kProtocolMajor);
    report.set_job_id("job");
    if (report.receiver_id().empty()) report.set_receiver_id("r0");
    *report.mutable_stream() = ToProto(rank.state()->stream);
    const auto committed = rank.state()->log->Find(WeightVersion(report.committed_version()));
    if (committed != nullptr) {
      *report.mutable_committed_state_token() = ToProto(committed->manifest.state_token);
    }
    files.SetContent("/root/job/rank-00000/receivers/" + *shared::EscapeId(report.receiver_id()),
                     shared::Seal(shared::SealedKind::kReport, report.SerializeAsString(), {}));
  }

  Rank rank;
  FaultFileSystem files;
  ThreadPool pool{1};
  PassingClock clock;
  Cancellation cancellation;
  ReceiverHub hub{clock, "job"};
  SharedPublisher publisher;
};

}  // namespace dws
