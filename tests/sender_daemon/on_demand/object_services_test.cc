#include "sender_daemon/on_demand/objects/object_services.h"

#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/proto_convert/convert.h"
#include "sender_daemon/on_demand/objects/object_stream.h"
#include "sender_daemon/on_demand/train_service.h"
#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/on_demand/silent_listener.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::seconds;

constexpr uint32_t kRanks = 2;
constexpr uint64_t kBytesMax = 8 << 20;

// How another sender may answer a fetch with something else than what it should.
struct Damage {
  uint64_t size_bytes = 8;
  uint64_t bit = 0;
  size_t first_chunk = 8;
};

// A sender that answers every fetch with 8 bytes, damaged.
class DamagedObjects final : public v1::PeerObjectService::Service {
 public:
  grpc::Status Fetch(grpc::ServerContext* /*context*/,
                     const v1::FetchPeerObjectRequest* /*request*/,
                     grpc::ServerWriter<v1::ObjectChunk>* writer) override {
    const std::string bytes = "12345678";
    v1::ObjectChunk chunk;
    chunk.set_size_bytes(damage.size_bytes);
    *chunk.mutable_digest() = ToProto(DigestBytes(AsBytes(bytes), 0));
    chunk.mutable_digest()->set_lane1(chunk.digest().lane1() ^ damage.bit);
    chunk.set_data(bytes.substr(0, damage.first_chunk));
    writer->Write(chunk);
    if (damage.first_chunk == bytes.size()) return grpc::Status::OK;
    v1::ObjectChunk rest;
    rest.set_data(bytes.substr(damage.first_chunk));
    writer->Write(rest);
    return grpc::Status::OK;
  }
  Damage damage;
};

// The sender of one rank: the services, over loopback.
class Sender {
 public:
  // `damaged`: in the place of its own service for other senders.
  explicit Sender(uint32_t rank, grpc::Service* damaged = nullptr)
      : rank_(rank), store_({.rank = TrainerRank(rank), .bytes_max = kBytesMax}) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&train_);
    builder.RegisterService(damaged != nullptr ? damaged : &for_peers_);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~Sender() { Kill(); }

  void Connect(const std::vector<std::string>& addresses) {
    OwnerLinks::Options to;
    to.job_id = "job";
    to.self = TrainerRank(rank_);
    to.addresses = addresses;
    auto links = OwnerLinks::Create(to, listener_, clock_);
    REQUIRE(links.ok());
    links_ = *std::move(links);
    for_rank_ = std::make_unique<ObjectServiceImpl>(
        "job", ObjectServiceImpl::Parts{
                   .store = store_, .traffic = traffic_, .owners = *links_, .clock = clock_});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &rank_port_);
    builder.RegisterService(for_rank_.get());
    rank_server_ = builder.BuildAndStart();
    REQUIRE(Eventually([this] {
      return links_->owner(TrainerRank(0)).connected().ok() &&
             links_->owner(TrainerRank(1)).connected().ok();
    }));
  }

  void Kill() {
    if (for_rank_ != nullptr) for_rank_->Stop();
    if (links_ != nullptr) links_->Stop();
    peers_.Stop();
    for (const auto& server : {server_.get(), rank_server_.get()}) {
      if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
    }
  }

  v1::ObjectsStatus status() const {
    v1::ObjectsStatus status;
    for_rank_->FillStatus(status);
    return status;
  }
  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }
  std::shared_ptr<grpc::Channel> ForRank() const { return Dial(rank_port_); }
  std::shared_ptr<grpc::Channel> ForPeers() const { return Dial(port_); }

 private:
  static std::shared_ptr<grpc::Channel> Dial(int port) {
    return grpc::CreateChannel(fmt::format("127.0.0.1:{}", port),
                               grpc::InsecureChannelCredentials());
  }

  const uint32_t rank_;
  RealClock clock_;
  SilentListener listener_;
  ObjectStore store_;
  ObjectTraffic traffic_;
  TrainPeers peers_{"job", TrainerRank(rank_)};
  TrainServiceImpl train_{TrainServiceImpl::Parts{.peers = peers_}};
  PeerObjectServiceImpl for_peers_{"job", store_, traffic_};
  std::unique_ptr<OwnerLinks> links_;
  std::unique_ptr<ObjectServiceImpl> for_rank_;
  int port_ = 0;
  int rank_port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> rank_server_;
};

struct Context : grpc::ClientContext {
  explicit Context(seconds timeout = seconds(20)) {
    set_deadline(std::chrono::system_clock::now() + timeout);
  }
};

// A process of a rank.
class Rank {
 public:
  explicit Rank(const Sender& sender) : stub_(v1::ObjectService::NewStub(sender.ForRank())) {}

  // Ends the attachment before.
  grpc::Status Attach(uint32_t rank, const std::string& job = "job", uint32_t ranks = kRanks) {
    v1::AttachObjectsRequest request;
    request.set_job_id(job);
    request.set_trainer_rank(rank);
    request.set_ranks(ranks);
    attachment_ = std::make_unique<Context>(seconds(600));
    stream_ = stub_->Attach(attachment_.get(), request);
    v1::ObjectsAttached attached;
    if (!stream_->Read(&attached)) return stream_->Finish();
    process_ = attached.process();
    CHECK(attached.bytes_max() == kBytesMax);
    return grpc::Status::OK;
  }
  void Leave() { attachment_->TryCancel(); }
  // Why it has ended.
  grpc::Status End() {
    v1::ObjectsAttached more;
    CHECK_FALSE(stream_->Read(&more));
    return stream_->Finish();
  }

  v1::PutObjectChunk First(const std::string& name, uint64_t number,
                           const std::string& bytes) const {
    v1::PutObjectChunk chunk;
    chunk.set_process(process_);
    chunk.mutable_key()->set_name(name);
    chunk.mutable_key()->set_number(number);
    chunk.set_size_bytes(bytes.size());
    *chunk.mutable_digest() = ToProto(DigestBytes(AsBytes(bytes), 0));
    return chunk;
  }
  grpc::Status Put(const std::vector<v1::PutObjectChunk>& chunks) {
    Context context;
    v1::PutObjectReply reply;
    const auto writer = stub_->Put(&context, &reply);
    for (const v1::PutObjectChunk& chunk : chunks) {
      if (!writer->Write(chunk)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status Put(const std::string& name, uint64_t number, const std::string& bytes) {
    std::vector<v1::PutObjectChunk> chunks{First(name, number, bytes)};
    for (size_t begin = 0; begin < bytes.size(); begin += size_t{1} << 20) {
      chunks.emplace_back().set_data(bytes.substr(begin, size_t{1} << 20));
    }
    return Put(chunks);
  }

  static v1::FetchObjectRequest Wanted(uint32_t rank, uint64_t process, const std::string& name,
                                       uint64_t number) {
    v1::FetchObjectRequest request;
    request.set_trainer_rank(rank);
    request.set_process(process);
    request.mutable_key()->set_name(name);
    request.mutable_key()->set_number(number);
    request.set_size_bytes_max(kBytesMax);
    return request;
  }
  std::pair<grpc::Status, std::string> Fetch(const v1::FetchObjectRequest& request,
                                             seconds timeout = seconds(20)) {
    Context context(timeout);
    const auto reader = stub_->Fetch(&context, request);
    std::string bytes;
    v1::ObjectChunk chunk;
    while (reader->Read(&chunk)) bytes += chunk.data();
    return {reader->Finish(), bytes};
  }

  uint64_t process() const { return process_; }

 private:
  const std::unique_ptr<v1::ObjectService::Stub> stub_;
  std::unique_ptr<Context> attachment_;
  std::unique_ptr<grpc::ClientReader<v1::ObjectsAttached>> stream_;
  uint64_t process_ = 0;
};

// Two senders with an attached rank each.
struct Job {
  Job() {
    senders[0].Connect({senders[0].address(), senders[1].address()});
    senders[1].Connect({senders[0].address(), senders[1].address()});
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(std::make_unique<Rank>(senders[rank]));
      REQUIRE(ranks[rank]->Attach(rank).ok());
    }
  }
  Sender senders[kRanks] = {Sender(0), Sender(1)};
  std::vector<std::unique_ptr<Rank>> ranks;
};

void CheckRefused(const grpc::Status& status, StatusCode code, const std::string& why) {
  CHECK(status.error_code() == code);
  CHECK_THAT(status.error_message(), Contains(why));
}

uint32_t BlamedRank(const grpc::Status& status) {
  v1::ObjectRefusal refusal;
  REQUIRE(refusal.ParseFromString(status.error_details()));
  REQUIRE(refusal.has_trainer_rank());
  return refusal.trainer_rank();
}

std::string Pattern(size_t size) {
  std::string bytes(size, ' ');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 13);
  return bytes;
}

}  // namespace

TEST_CASE("an object of any size reaches its own rank and another one", "[objects]") {
  Job job;
  uint64_t number = 0;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1} << 20, (size_t{3} << 20) + 5}) {
    const std::string bytes = Pattern(size);
    CHECK(job.ranks[1]->Put("sum", ++number, bytes).ok());
    CHECK(job.ranks[1]->Put("sum", number, bytes).ok());  // again
    for (const auto& rank : job.ranks) {
      const auto [status, found] =
          rank->Fetch(Rank::Wanted(1, job.ranks[1]->process(), "sum", number));
      CHECK(status.ok());
      const bool equal = found == bytes;  // not printed
      CHECK(equal);
    }
  }
  auto small = Rank::Wanted(1, job.ranks[1]->process(), "sum", number);
  small.set_size_bytes_max(4);
  CheckRefused(job.ranks[0]->Fetch(small).first, StatusCode::OUT_OF_RANGE, "expected at most 4");
  CheckRefused(job.ranks[0]->Fetch(Rank::Wanted(2, 1, "sum", 1)).first,
               StatusCode::INVALID_ARGUMENT, "an object of rank 2, expected a rank below 2");
  CheckRefused(
      job.ranks[0]->Fetch(Rank::Wanted(1, job.ranks[1]->process(), "no", 1), seconds(1)).first,
      StatusCode::DEADLINE_EXCEEDED, "");
}

TEST_CASE("a rank that waits hears within 2 s that the other process or sender is gone",
          "[objects]") {
  Job job;
  Rank& asks = *job.ranks[0];
  Rank& asked = *job.ranks[1];
  // The status of rank 0's fetch of what rank 1's process does not put, if `change` comes while it
  // waits.
  const auto fetch_while = [&](const std::function<void()>& change) {
    std::chrono::steady_clock::time_point changed;
    std::thread later([&] {
      if (!Eventually([&] { return job.senders[1].status().waits() == 1; })) return;
      changed = std::chrono::steady_clock::now();
      change();
    });
    const grpc::Status status = asks.Fetch(Rank::Wanted(1, asked.process(), "sum", 1)).first;
    const auto heard = std::chrono::steady_clock::now();
    later.join();
    CHECK(heard - changed < seconds(2));
    CHECK(BlamedRank(status) == 1);
    return status;
  };
  v1::PutObjectChunk over = asked.First("over", 7, "");
  over.set_over_because("rank 5 is gone");
  CheckRefused(fetch_while([&] { (void)asked.Put({over}); }), StatusCode::ABORTED,
               "has gone on to number 7: rank 5 is gone");
  REQUIRE(asked.Attach(1).ok());
  Rank next(job.senders[1]);
  CheckRefused(fetch_while([&] { (void)next.Attach(1); }), StatusCode::UNAVAILABLE,
               "another process of rank 1");
  REQUIRE(asked.Attach(1).ok());
  CheckRefused(fetch_while([&] { asked.Leave(); }), StatusCode::UNAVAILABLE, "is gone");
  CheckRefused(asked.Put("sum", 1, "x"), StatusCode::FAILED_PRECONDITION,
               "this process of rank 1 has to attach");
  REQUIRE(asked.Attach(1).ok());
  CHECK(fetch_while([&] { job.senders[1].Kill(); }).error_code() == StatusCode::UNAVAILABLE);
  REQUIRE(Eventually([&] {
    const grpc::Status status = asks.Fetch(Rank::Wanted(1, asked.process(), "sum", 1)).first;
    return status.error_code() == StatusCode::UNAVAILABLE &&
           status.error_message().find("the sender of trainer rank 1 at") == 0;
  }));
}

TEST_CASE("a rank that hangs up while it waits is forgotten", "[objects]") {
  Job job;
  for (const uint32_t rank : {0U, 1U}) {
    const auto wanted = Rank::Wanted(1, job.ranks[1]->process(), "sum", 1);
    CheckRefused(job.ranks[rank]->Fetch(wanted, seconds(1)).first, StatusCode::DEADLINE_EXCEEDED,
                 "");
    CHECK(Eventually([&] { return job.senders[1].status().waits() == 0; }));
  }
}

TEST_CASE("processes of other jobs, ranks and sizes are refused by name", "[objects]") {
  Job job;
  Rank other(job.senders[0]);
  CheckRefused(other.Attach(0, std::string(300, 'j')), StatusCode::FAILED_PRECONDITION,
               "this sender serves job 'job', the rank belongs to 'jjj");
  CheckRefused(other.Attach(1), StatusCode::FAILED_PRECONDITION,
               "this sender is of trainer rank 0");
  CheckRefused(other.Attach(0, "job", 3), StatusCode::FAILED_PRECONDITION, "the process counts 3");
  CHECK(job.ranks[0]->Put("a", 1, "still attached").ok());
  REQUIRE(other.Attach(0).ok());
  CheckRefused(job.ranks[0]->End(), StatusCode::FAILED_PRECONDITION,
               "another process of the rank has attached");
  CHECK(other.Put("a", 1, "and this one now").ok());  // the end of the first one does not detach it

  const auto peers = v1::PeerObjectService::NewStub(job.senders[1].ForPeers());
  const auto ask = [&](const std::string& job_id, uint32_t rank) {
    v1::FetchPeerObjectRequest request;
    request.set_job_id(job_id);
    *request.mutable_wanted() = Rank::Wanted(rank, 1, "a", 1);
    Context context;
    v1::ObjectChunk chunk;
    const auto reader = peers->Fetch(&context, request);
    CHECK_FALSE(reader->Read(&chunk));
    return reader->Finish();
  };
  CheckRefused(ask("another", 1), StatusCode::FAILED_PRECONDITION,
               "the other belongs to 'another'");
  CheckRefused(ask("job", 0), StatusCode::FAILED_PRECONDITION,
               "this sender is of trainer rank 1, expected 0");
}

TEST_CASE("a put that is too large, too short, too long or damaged leaves nothing", "[objects]") {
  Job job;
  Rank& rank = *job.ranks[0];
  CheckRefused(rank.Put({}), StatusCode::INVALID_ARGUMENT, "expected a first message");
  v1::PutObjectChunk huge = rank.First("a", 1, "");
  huge.set_size_bytes(~uint64_t{0});
  CheckRefused(rank.Put({huge}), StatusCode::RESOURCE_EXHAUSTED, "raise --object-bytes");
  huge.set_size_bytes(kBytesMax + 1);
  CheckRefused(rank.Put({huge}), StatusCode::RESOURCE_EXHAUSTED, "raise --object-bytes");
  v1::PutObjectChunk first = rank.First("a", 1, "12345678");
  CheckRefused(rank.Put({first}), StatusCode::INVALID_ARGUMENT, "ended after 0 bytes, expected 8");
  v1::PutObjectChunk rest;
  rest.set_data("123456789");
  CheckRefused(rank.Put({first, rest}), StatusCode::INVALID_ARGUMENT, "more than its 8 bytes");
  rest.set_data("12345679");
  CheckRefused(rank.Put({first, rest}), StatusCode::DATA_LOSS, "has arrived damaged");
  CheckRefused(rank.Put(std::string(65, 'n'), 1, ""), StatusCode::INVALID_ARGUMENT, "65 bytes");
  CheckRefused(rank.Put("exchange/sum", 1, ""), StatusCode::INVALID_ARGUMENT,
               "'exchange/sum' number 1: expected a name that does not begin with 'exchange/'");
  first.set_process(rank.process() + 1);
  CheckRefused(rank.Put({first}), StatusCode::FAILED_PRECONDITION, "has to attach");
  CheckRefused(job.ranks[1]->Fetch(Rank::Wanted(0, rank.process(), "a", 1), seconds(1)).first,
               StatusCode::DEADLINE_EXCEEDED, "");
  CHECK(rank.Put("a", 1, Pattern(kBytesMax)).ok());  // nothing of that takes room any longer
  CheckRefused(rank.Put("b", 1, "x"), StatusCode::RESOURCE_EXHAUSTED, "'b' number 1 has 1 bytes");
}

TEST_CASE("what another sender sends damaged is refused by its rank", "[objects]") {
  DamagedObjects damaged;
  Sender whole(0);
  Sender liar(1, &damaged);
  whole.Connect({whole.address(), liar.address()});
  Rank rank(whole);
  REQUIRE(rank.Attach(0).ok());
  const auto fetch = [&](const Damage& damage, uint64_t most = 100) {
    damaged.damage = damage;
    auto wanted = Rank::Wanted(1, 1, "a", 1);
    wanted.set_size_bytes_max(most);
    return rank.Fetch(wanted).first;
  };
  CHECK(fetch({}).ok());
  for (const Damage& damage : {Damage{.size_bytes = 8, .bit = 1, .first_chunk = 8},
                               Damage{.size_bytes = 16, .bit = 0, .first_chunk = 8},
                               Damage{.size_bytes = 7, .bit = 0, .first_chunk = 8},
                               Damage{.size_bytes = 8, .bit = 0, .first_chunk = 4}}) {
    const grpc::Status status = fetch(damage);
    CHECK(status.error_code() == StatusCode::DATA_LOSS);
    CHECK(BlamedRank(status) == 1);
  }
  CheckRefused(fetch({.size_bytes = 101, .bit = 0, .first_chunk = 8}), StatusCode::OUT_OF_RANGE,
               "an object has 101 bytes, expected at most 100");
}

TEST_CASE("the status has what is held, put, sent and waited for", "[objects]") {
  Job job;
  Rank& puts = *job.ranks[1];
  v1::ObjectsStatus status = job.senders[1].status();
  CHECK(status.attached());
  CHECK(status.bytes_max() == kBytesMax);
  CHECK(status.last_put().empty());
  const std::string bytes = Pattern(size_t{3} << 20);
  auto first = puts.First("sum", 5, bytes);
  first.set_rounds(4);
  first.set_data(bytes);
  REQUIRE(puts.Put({first}).ok());
  REQUIRE(puts.Fetch(Rank::Wanted(1, puts.process(), "sum", 5)).first.ok());
  status = job.senders[1].status();
  CHECK(status.objects() == 1);
  CHECK(status.held_bytes() == bytes.size());
  CHECK(status.put_bytes() == bytes.size());
  CHECK(status.rounds() == 4);
  CHECK(status.last_put() == "'sum' number 5");
  CHECK(status.sent_bytes() == 0);  // only its own rank has asked

  REQUIRE(job.ranks[0]->Fetch(Rank::Wanted(1, puts.process(), "sum", 5)).first.ok());
  status = job.senders[1].status();
  const v1::ObjectsStatus other = job.senders[0].status();
  CHECK(status.sent_bytes() > bytes.size());
  CHECK(status.sent_bytes() < bytes.size() + 1000);
  CHECK(other.received_bytes() == status.sent_bytes());
  CHECK(status.received_bytes() == other.sent_bytes());  // the request
  CHECK(other.sent_bytes() > 0);

  CHECK_FALSE(puts.Put(std::string(65, 'n'), 6, "").ok());
  CHECK_FALSE(puts.Put({}).ok());
  CHECK(job.senders[1].status().puts_refused() == 2);
  puts.Leave();
  CHECK(Eventually([&] { return !job.senders[1].status().attached(); }));
  status = job.senders[1].status();
  CHECK(status.objects() == 0);
  CHECK(status.last_put() == "'sum' number 5");  // that of the process that is gone
}

TEST_CASE("the status names the object that the rank has waited for longest", "[objects]") {
  Job job;
  CHECK(job.senders[0].status().waits_for().empty());
  const auto wait_for = [&](const std::string& name) {
    return std::thread([&, name] {
      (void)job.ranks[0]->Fetch(Rank::Wanted(1, job.ranks[1]->process(), name, 3));
    });
  };
  std::thread longer = wait_for("first\n");
  CHECK(Eventually([&] { return job.senders[1].status().waits() == 1; }));
  std::thread shorter = wait_for("second");
  CHECK(Eventually([&] { return job.senders[1].status().waits() == 2; }));
  CHECK(job.senders[0].status().waits_for() == "'first\\x0a' number 3 of rank 1");
  CHECK(job.senders[0].status().wait_seconds() > 0);
  CHECK(job.ranks[1]->Put("first\n", 3, "x").ok());
  longer.join();
  CHECK(job.senders[0].status().waits_for() == "'second' number 3 of rank 1");
  job.ranks[1]->Leave();
  shorter.join();
  CHECK(Eventually([&] { return job.senders[0].status().waits_for().empty(); }));
}

}  // namespace dws
