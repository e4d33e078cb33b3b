// A rank is asked for an object that is newer than the number before; its sender answers when there
// is one. An older one than wanted means that another process has answered, which is asked next.
#include "sender_daemon/on_demand/objects/object_exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/peers/active_calls.h"
#include "proto/objects.grpc.pb.h"
#include "sender_daemon/on_demand/objects/object_chunks.h"

namespace dws {
namespace {

// A call that waits longer is made again, so that none outlives its exchange for long.
constexpr std::chrono::seconds kAskedMax{20};
constexpr std::chrono::milliseconds kAgainAfter{500};
// An exchange that lasts longer is reported, once.
constexpr std::chrono::seconds kToldAfter{5};
// What the objects of all names may have together.
constexpr uint64_t kHeldBytesMax = 16 * limits::kExchangedBytesMax;

}  // namespace

// One fetch. Owns itself until the call has ended.
class ObjectExchange::Call final : public grpc::ClientReadReactor<v1::ObjectChunk> {
 public:
  Call(ObjectExchange& exchange, RoundPtr round, uint32_t rank)
      : exchange_(exchange),
        round_(std::move(round)),
        rank_(rank),
        link_(exchange.links_.owner(TrainerRank(rank))),
        stub_(v1::PeerObjectService::NewStub(link_.channel())),
        call_(std::make_unique<ActiveCalls::Call>(link_.calls(), kAskedMax)) {}

  void Start(uint64_t process) {
    request_.set_job_id(exchange_.job_id_);
    request_.set_trainer_rank(exchange_.self_.value());
    v1::FetchObjectRequest& wanted = *request_.mutable_wanted();
    wanted.set_trainer_rank(rank_);
    wanted.set_process(process);
    wanted.mutable_key()->set_name(round_->key.name);
    wanted.mutable_key()->set_number(round_->key.number - 1);
    wanted.set_newer(true);
    wanted.set_size_bytes_max(limits::kExchangedBytesMax);
    stub_->async()->Fetch(call_->context(), &request_, this);
    StartRead(&chunk_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    Status status;
    if (chunks_.first()) {
      status = link_.CheckPeer(*call_->context());
      fetched_.process = chunk_.process();
      fetched_.number = chunk_.number();
    }
    if (status.ok()) status = chunks_.Add(chunk_);
    if (!status.ok()) {
      wrong_ = status;
      return call_->context()->TryCancel();
    }
    const ByteSpan data = AsBytes(chunk_.data());
    fetched_.bytes.insert(fetched_.bytes.end(), data.begin(), data.end());
    StartRead(&chunk_);
  }

  void OnDone(const grpc::Status& ended) override {
    call_.reset();  // before the link ends
    Status status = wrong_.ok() ? FromGrpc(ended) : wrong_;
    if (status.ok()) status = chunks_.Finish();
    exchange_.OnFetched(round_, rank_, status, std::move(fetched_));
    delete this;
  }

 private:
  ObjectExchange& exchange_;
  const RoundPtr round_;
  const uint32_t rank_;
  OwnerLink& link_;
  const std::unique_ptr<v1::PeerObjectService::Stub> stub_;
  std::unique_ptr<ActiveCalls::Call> call_;
  v1::FetchPeerObjectRequest request_;
  v1::ObjectChunk chunk_;
  ObjectChunks chunks_{limits::kExchangedBytesMax};
  Fetched fetched_;
  Status wrong_;
};

ObjectExchange::ObjectExchange(std::string job_id, TrainerRank self, uint64_t epoch,
                               OwnerLinks& links)
    : job_id_(std::move(job_id)),
      self_(self),
      links_(links),
      store_({.rank = self, .bytes_max = kHeldBytesMax, .epoch = epoch}),
      process_(store_.Attach("its sender")),
      asks_([this] { return Ask(); }) {
  asks_.Start();
}

void ObjectExchange::Stop() {
  asks_.Stop();
  store_.Stop();
  MutexLock lock(mutex_);
  stopping_ = true;
  rounds_.clear();
  while (calls_ > 0) ended_.Wait(mutex_);
}

void ObjectExchange::BeginAgain() {
  const uint64_t process = store_.Attach("its sender");
  MutexLock lock(mutex_);
  rounds_.clear();
  process_ = process;
}

Status ObjectExchange::Begin(const RankObjectKey& key, Bytes bytes, Take take) {
  DWS_CHECK(key.number > 0 && key.name.starts_with(kExchangedName));
  if (bytes.size() > limits::kExchangedBytesMax) {
    return ResourceExhaustedError("{} has {} bytes for the other ranks, at most {} are supported",
                                  ToString(key), bytes.size(), limits::kExchangedBytesMax);
  }
  auto object = std::make_shared<RankObject>();
  object->number = key.number;
  object->put_at = clock_.Now();
  object->digest = DigestBytes(bytes, 0);
  {
    MutexLock lock(mutex_);
    if (stopping_) return UnavailableError("the sender is shutting down");
    object->process = process_;
  }
  DWS_ASSIGN_OR_RETURN(object->room,
                       store_.Reserve(object->process, key, bytes.size(), std::nullopt));
  object->bytes = std::move(bytes);
  const uint64_t process = object->process;
  DWS_RETURN_IF_ERROR(store_.Put(key.name, std::move(object)));
  MutexLock lock(mutex_);
  if (stopping_ || process != process_) return AbortedError("the exchanges have begun again");
  rounds_.erase(key.name);
  if (take == nullptr) return OkStatus();
  rounds_[key.name] = std::make_shared<Round>(Round{.key = key,
                                                    .take = std::move(take),
                                                    .parts = std::vector<Part>(links_.size()),
                                                    .began = clock_.Now()});
  asks_.Wake();
  return OkStatus();
}

void ObjectExchange::End(const std::string& name) {
  MutexLock lock(mutex_);
  rounds_.erase(name);
  store_.Remove(process_, name);
}

bool ObjectExchange::IsCurrent(const RoundPtr& round) const {
  const auto found = rounds_.find(round->key.name);
  return found != rounds_.end() && found->second == round;
}

Duration ObjectExchange::Ask() {
  struct Due {
    RoundPtr round;
    uint32_t rank;
    uint64_t process;
  };
  std::vector<Due> due;
  {
    MutexLock lock(mutex_);
    const TimePoint now = clock_.Now();
    for (const auto& [name, round] : rounds_) {
      if (!round->told && now - round->began > kToldAfter) {
        LogWarning("exchange_waits",
                   {{"for", ToString(round->key)}, {"reason", Message(AwaitedIn(*round))}});
        round->told = true;
      }
      for (uint32_t rank = 0; rank < round->parts.size(); ++rank) {
        Part& part = round->parts[rank];
        if (rank == self_.value() || part.asked || part.object.has_value()) continue;
        if (now < part.again_at) continue;
        part.unreachable = links_.owner(TrainerRank(rank)).connected();
        if (!part.unreachable.ok()) continue;
        part.asked = true;
        ++calls_;
        due.push_back({.round = round, .rank = rank, .process = part.process});
      }
    }
  }
  for (const Due& one : due) (new Call(*this, one.round, one.rank))->Start(one.process);
  return limits::kTick;
}

void ObjectExchange::OnFetched(const RoundPtr& round, uint32_t rank, const Status& status,
                               Fetched fetched) {
  std::vector<Bytes> objects;
  {
    MutexLock lock(mutex_);
    if (IsCurrent(round)) {
      Part& part = round->parts[rank];
      part.asked = false;
      part.reason = status;
      part.again_at = clock_.Now() + kAgainAfter;
      if (status.ok() && fetched.number < round->key.number) {
        part.process = fetched.process;
        part.again_at = {};
        asks_.Wake();
      } else if (status.ok() && fetched.number > round->key.number) {
        part.reason = AbortedError("it has gone on to number {}", fetched.number);
      } else if (status.ok()) {
        part.object = std::move(fetched.bytes);
      } else if (status.code() == absl::StatusCode::kDeadlineExceeded) {
        part.reason = OkStatus();
        part.again_at = {};
      }
      const auto there = [&](const Part& of) {
        return of.object.has_value() || &of == &round->parts[self_.value()];
      };
      if (std::ranges::all_of(round->parts, there)) {
        for (Part& of : round->parts) objects.push_back(of.object.value_or(Bytes()));
      }
    }
  }
  Status taken;
  if (!objects.empty()) taken = round->take(objects);
  MutexLock lock(mutex_);
  if (!objects.empty() && IsCurrent(round)) {
    if (taken.ok()) {
      rounds_.erase(round->key.name);
    } else {
      for (Part& part : round->parts) {
        part = {.process = part.process, .again_at = clock_.Now() + kAgainAfter, .reason = taken};
      }
    }
  }
  --calls_;
  ended_.NotifyAll();
}

Status ObjectExchange::Awaited(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = rounds_.find(name);
  return found == rounds_.end() ? OkStatus() : AwaitedIn(*found->second);
}

Status ObjectExchange::AwaitedIn(const Round& round) const {
  for (uint32_t rank = 0; rank < round.parts.size(); ++rank) {
    const Part& part = round.parts[rank];
    if (rank == self_.value() || part.object.has_value()) continue;
    const std::string name = links_.owner(TrainerRank(rank)).name();
    const Status& why = part.unreachable.ok() ? part.reason : part.unreachable;
    if (!why.ok()) return Annotate(why, fmt::format("the sender of {}", name));
    return UnavailableError("the sender of {} has nothing with number {} yet", name,
                            round.key.number);
  }
  return OkStatus();
}

}  // namespace dws
