// A fake sender in this process that cuts, stalls and corrupts, and a receiver's links to it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"
#include "common/sources/sender/grpc_source.h"
#include "proto/sync.grpc.pb.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/sources/inline_source.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {

inline constexpr StreamId kStream{.incarnation = 3, .id_hi = 1, .id_lo = 2};

inline std::shared_ptr<const RankLayout> OneTensor() {
  return MakeRankLayout(
      {{.tensor = {.name = "w", .dtype = DType::kBF16, .shape = {150'000}, .cuts = {{0, {70'000}}}},
        .cells = {{0, 2}}}});
}

// Serves one Sync stream at a time, and an object filled with letters.
class FakeSender final : public v1::SyncService::Service {
 public:
  explicit FakeSender(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~FakeSender() override { Shut(); }

  void Shut() { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  std::vector<v1::SyncUp> Heard() {
    MutexLock lock(mutex_);
    return heard_;
  }
  // Where the streams came from, one each, in order.
  std::vector<std::string> Callers() {
    MutexLock lock(mutex_);
    return callers_;
  }
  bool HeardAck(v1::Ack::Stage stage, uint64_t version) {
    const std::vector<v1::SyncUp> heard = Heard();
    return std::any_of(heard.begin(), heard.end(), [&](const v1::SyncUp& up) {
      return up.has_ack() && up.ack().stage() == stage && up.ack().version() == version;
    });
  }

  grpc::Status Sync(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::SyncDown, v1::SyncUp>* stream) override {
    {
      MutexLock lock(mutex_);
      callers_.push_back(context->peer());
    }
    v1::SyncUp up;
    while (stream->Read(&up)) {
      {
        MutexLock lock(mutex_);
        heard_.push_back(up);
      }
      if (!up.has_hello()) continue;
      v1::SyncDown down;
      down.set_nonce(1);
      v1::Welcome& welcome = *down.mutable_welcome();
      *welcome.mutable_stream() = ToProto(kStream);
      welcome.set_world_size(1);
      welcome.set_rank_epoch(1);
      *welcome.mutable_layout() = ToProto(*layout);
      *welcome.mutable_layout_signature() = ToProto(layout->signature());
      welcome.set_protocol_major(protocol_major);
      if (const int left = lies.load(); left > 0) {
        lies = left - 1;
        lie(down);
        stream->Write(down);
        while (stream->Read(&up)) continue;
        return grpc::Status::OK;
      }
      stream->Write(down);
      down.Clear();
      down.set_nonce(2);
      *down.mutable_announce()->mutable_stream() = ToProto(kStream);
      down.mutable_announce()->set_rank_epoch(1);
      for (const uint64_t version : {4, 5}) down.mutable_announce()->add_versions(version);
      if (const int left = descending.load(); left > 0) {
        descending = left - 1;
        down.mutable_announce()->add_versions(3);
      }
      down.mutable_announce()->set_object_base(4);
      down.mutable_announce()->set_object(inline_object);
      stream->Write(down);
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchChunk>* writer) override {
    if (request->early()) return early(*context, *request, *writer);
    MutexLock lock(script);
    offsets.push_back(request->offset());
    uint64_t offset = request->offset();
    for (int sent = 0; offset < object.size(); ++sent) {
      if (sent == chunks_before_cut) return {grpc::StatusCode::UNAVAILABLE, "cut"};
      v1::FetchChunk chunk;
      chunk.set_object_bytes(object.size());
      chunk.set_offset(offset + offset_lie);
      chunk.set_data(object.substr(offset, 100));
      offset += chunk.data().size();
      writer->Write(chunk);
    }
    return fetch_end;
  }

  grpc::Status FetchFull(grpc::ServerContext*, const v1::FetchFullRequest* request,
                         grpc::ServerWriter<v1::FullFrame>* writer) override {
    MutexLock lock(script);
    full_requests.emplace_back();
    for (const v1::BlockRange& range : request->blocks()) {
      full_requests.back().push_back(range.rank_slice());
    }
    int sent = 0;
    for (const v1::BlockRange& range : request->blocks()) {
      const RankLayout::SliceEntry& slice = layout->slice(RankSlice(range.rank_slice()));
      for (uint32_t i = 0; i < range.block_count(); ++i) {
        if (sent++ == frames_before_cut) {
          frames_before_cut = -1;
          return {grpc::StatusCode::UNAVAILABLE, "cut"};
        }
        const uint32_t block = range.first_block() + i;
        v1::FullFrame message;
        message.set_rank_slice(range.rank_slice());
        message.set_data(std::string(BlockElements(slice.elements, block) * 2, '\0'));
        *message.mutable_entry() = ToProto(FrameEntry{
            .first_block = block, .block_count = 1, .size_bytes = message.data().size()});
        writer->Write(message);
      }
    }
    return grpc::Status::OK;
  }

  // The first `lies` streams send only the welcome as `lie` changes it.
  std::atomic<int> lies = 0;
  std::function<void(v1::SyncDown&)> lie;
  std::atomic<int> descending = 0;  // streams whose first announcement is out of order
  // Set these with no call in flight.
  std::shared_ptr<const RankLayout> layout = OneTensor();
  uint32_t protocol_major = kProtocolMajor;
  std::string inline_object;  // 4 -> 5, inside the announcement
  std::string object = std::string(950, 'x');
  std::function<grpc::Status(grpc::ServerContext&, const v1::FetchRequest&,
                             grpc::ServerWriter<v1::FetchChunk>&)>
      early;
  // The behaviour of Fetch and FetchFull, and the requests they got.
  Mutex script;
  int chunks_before_cut = -1;
  int frames_before_cut = -1;
  uint64_t offset_lie = 0;
  grpc::Status fetch_end;
  std::vector<uint64_t> offsets;
  std::vector<std::vector<uint32_t>> full_requests;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  std::vector<v1::SyncUp> heard_ GUARDED_BY(mutex_);
  std::vector<std::string> callers_ GUARDED_BY(mutex_);
};

struct Receiver {
  explicit Receiver(const std::string& address)
      : subscription({address}, std::nullopt, changed, clock),
        links({.addresses = {address}, .job_id = "job", .receiver_id = "r0"}, subscription, clock) {
  }

  SyncTarget Target() {
    REQUIRE(Eventually([this] { return subscription.Target().has_value(); }));
    return *subscription.Target();
  }
  Result<Spool> Fetch(const SyncTarget& target) { return Fetch(target, WeightVersion(4)); }
  Result<Spool> Fetch(const SyncTarget& target, WeightVersion base) {
    return sources.Object(
        {target, TrainerRank(0)}, {.base = base, .slices = std::nullopt},
        {.folder = "/tmp", .memory_bytes_max = 1 << 20, .size_bytes_max = 1 << 20});
  }

  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription;
  SyncLinks links;
  InlineSource inlined{links};
  GrpcSource grpc{links, ProfileChoice::kAuto, clock};
  SourceChain sources{{&inlined, &grpc}, {}};
};

}  // namespace dws
