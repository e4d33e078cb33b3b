// gRPC's threads and one ticker answer Status and Watch. Operations block, so they run on a few
// separate threads and offer their progress to streams that keep only the latest message.
#include "common/service/grpc/admin_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "common/base/threads/executor.h"
#include "common/base/threads/loop_thread.h"
#include "common/model/limits.h"
#include "common/service/build_version.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/grpc/latest_streams.h"
#include "proto/admin.grpc.pb.h"

namespace dws {
namespace {

using WatchStream = LatestStream<v1::StatusReply>;
using ProgressStream = LatestStream<v1::OperationProgress>;

// How long a caller may take to read the end of its stream when the daemon stops.
constexpr std::chrono::milliseconds kStopPatience{300};

Result<Duration> WatchInterval(const v1::WatchRequest& request) {
  const double seconds = request.interval_seconds();
  if (seconds == 0) return Duration(limits::kWatchIntervalDefault);
  // A NaN fails both comparisons.
  if (seconds >= ToSeconds(limits::kWatchIntervalMin) &&
      seconds <= ToSeconds(limits::kWatchIntervalMax)) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  return InvalidArgumentError("interval_seconds is {}, expected {} to {}, or 0 for {}", seconds,
                              ToSeconds(limits::kWatchIntervalMin),
                              ToSeconds(limits::kWatchIntervalMax),
                              ToSeconds(limits::kWatchIntervalDefault));
}

// Counts the running calls of one kind, and limits them.
class Slots {
 public:
  explicit Slots(size_t count_max) : count_max_(count_max) {}
  bool Take() {
    size_t taken = taken_.load();
    while (taken < count_max_) {
      if (taken_.compare_exchange_weak(taken, taken + 1)) return true;
    }
    return false;
  }
  void Return() { taken_.fetch_sub(1); }

 private:
  const size_t count_max_;
  std::atomic<size_t> taken_{0};
};

}  // namespace

class AdminService::Impl {
 public:
  using Operation = std::function<dws::Status(const AdminOperations::Sink&)>;

  Impl(AdminOperations& operations, const Clock& clock, Options options)
      : operations_(operations),
        clock_(clock),
        options_(std::move(options)),
        watches_(limits::kWatchersMax, clock),
        progresses_(limits::kAdminStreamsMax, clock),
        ticker_([this] { return Tick(); }) {
    ticker_.Start();
  }
  ~Impl() { Stop(); }

  v1::StatusReply Status() const;
  WatchStream* Watch(grpc::CallbackServerContext* context, const v1::WatchRequest& request);
  // Runs `operation` in the background and returns the stream of its progress. `slots` are those of
  // its kind.
  ProgressStream* Run(grpc::CallbackServerContext* context, Slots& slots, Operation operation);
  void Stop();

  AdminOperations& operations() { return operations_; }
  Slots& work() { return work_; }
  Slots& urgent() { return urgent_; }

 private:
  struct Watcher {
    WatchStream::Ptr stream;
    Duration interval;
    TimePoint due;
  };
  // Sends the replies that are due. Returns the time until the next reply is due.
  Duration Tick();

  AdminOperations& operations_;
  const Clock& clock_;
  const Options options_;
  // Drains and evictions have separate slots: many long verifications must not keep an operator
  // from undoing a drain or from ending the wait of a resync.
  Slots work_{limits::kAdminOperationsMax};
  Slots urgent_{limits::kAdminOperationsMax};
  LatestStreams<v1::StatusReply> watches_;
  LatestStreams<v1::OperationProgress> progresses_;
  Executor executor_{2 * limits::kAdminOperationsMax, 2 * limits::kAdminOperationsMax};
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<Watcher> watchers_ GUARDED_BY(mutex_);
  LoopThread ticker_;
};

v1::StatusReply AdminService::Impl::Status() const {
  v1::StatusReply reply;
  operations_.FillStatus(reply);
  reply.set_build_version(std::string(kBuildVersion));
  FillBuildStatus(*reply.mutable_build());
  if (options_.fill_tls) options_.fill_tls(*reply.mutable_tls());
  for (const std::string& part : options_.insecure) reply.add_insecure(part);
  // For people, and for comparison with the clocks of other machines; the daemon decides nothing by
  // it.
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  reply.set_unix_seconds(std::chrono::duration<double>(since_epoch).count());
  return reply;
}

WatchStream* AdminService::Impl::Watch(grpc::CallbackServerContext* context,
                                       const v1::WatchRequest& request) {
  const auto [stream, accepted] = watches_.Open(context);
  if (!accepted) return stream.get();
  const Result<Duration> interval = WatchInterval(request);
  if (!interval.ok()) {
    stream->Close(interval.status());
    return stream.get();
  }
  {
    MutexLock lock(mutex_);
    watchers_.push_back({.stream = stream, .interval = *interval, .due = clock_.Now()});
  }
  ticker_.Wake();
  return stream.get();
}

Duration AdminService::Impl::Tick() {
  std::vector<WatchStream::Ptr> due;
  const TimePoint now = clock_.Now();
  TimePoint next = now + limits::kWatchIntervalDefault;
  {
    MutexLock lock(mutex_);
    for (Watcher& watcher : watchers_) {
      if (watcher.due <= now) {
        due.push_back(watcher.stream);
        // Missed ticks are skipped.
        watcher.due = std::max(watcher.due + watcher.interval, now);
      }
      next = std::min(next, watcher.due);
    }
  }
  if (!due.empty()) {
    const v1::StatusReply reply = Status();
    for (WatchStream::Ptr& stream : due) {
      if (stream->Offer(reply)) stream.reset();
    }
    MutexLock lock(mutex_);  // the streams left in `due` have ended
    std::erase_if(watchers_, [&due](const Watcher& watcher) {
      return std::find(due.begin(), due.end(), watcher.stream) != due.end();
    });
  }
  watches_.CancelStalled(limits::kStalledReaderTimeout);
  progresses_.CancelStalled(limits::kStalledReaderTimeout);
  return std::max<Duration>(next - clock_.Now(), std::chrono::milliseconds(1));
}

ProgressStream* AdminService::Impl::Run(grpc::CallbackServerContext* context, Slots& slots,
                                        Operation operation) {
  const auto [stream, accepted] = progresses_.Open(context);
  if (!accepted) return stream.get();
  const auto busy = ResourceExhaustedError(
      "{} operations are running already: wait until one has ended, or cancel one by disconnecting "
      "its caller",
      limits::kAdminOperationsMax);
  if (!slots.Take()) {
    stream->Close(busy);
    return stream.get();
  }
  const bool posted = executor_.Post([this, &slots, stream = stream, run = std::move(operation)] {
    const dws::Status status = run([this, &stream](const v1::OperationProgress& progress) {
      return !stopping_.load() && stream->Offer(progress);
    });
    slots.Return();
    stream->Close(status);
  });
  if (!posted) {
    slots.Return();
    stream->Close(busy);
  }
  return stream.get();
}

void AdminService::Impl::Stop() {
  stopping_.store(true);
  ticker_.Stop();
  const dws::Status reason = UnavailableError("the daemon is stopping");
  watches_.EndAll(reason, kStopPatience);
  progresses_.EndAll(reason, kStopPatience);
  executor_.Stop();
  MutexLock lock(mutex_);
  watchers_.clear();
}

class AdminService::Server final : public v1::AdminService::CallbackService {
 public:
  explicit Server(Impl& impl) : impl_(impl) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusReply* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    *reply = impl_.Status();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Plan(grpc::CallbackServerContext* context, const v1::PlanRequest*,
                                 v1::PlanReply* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    Result<v1::PlanReply> plan = impl_.operations().Plan();
    if (plan.ok()) *reply = *std::move(plan);
    reactor->Finish(ToGrpc(plan.status()));
    return reactor;
  }
  grpc::ServerWriteReactor<v1::StatusReply>* Watch(grpc::CallbackServerContext* context,
                                                   const v1::WatchRequest* request) override {
    return impl_.Watch(context, *request);
  }
  grpc::ServerWriteReactor<v1::OperationProgress>* Verify(grpc::CallbackServerContext* context,
                                                          const v1::VerifyRequest*) override {
    return impl_.Run(context, impl_.work(), [this](const AdminOperations::Sink& sink) {
      return impl_.operations().Verify(sink);
    });
  }
  grpc::ServerWriteReactor<v1::OperationProgress>* Resync(
      grpc::CallbackServerContext* context, const v1::ResyncRequest* request) override {
    return impl_.Run(context, impl_.work(),
                     [this, request = *request](const AdminOperations::Sink& sink) {
                       return impl_.operations().Resync(request, sink);
                     });
  }
  grpc::ServerWriteReactor<v1::OperationProgress>* Drain(grpc::CallbackServerContext* context,
                                                         const v1::DrainRequest* request) override {
    return impl_.Run(context, impl_.urgent(),
                     [this, request = *request](const AdminOperations::Sink& sink) {
                       return impl_.operations().Drain(request, sink);
                     });
  }
  grpc::ServerWriteReactor<v1::OperationProgress>* Evict(grpc::CallbackServerContext* context,
                                                         const v1::EvictRequest* request) override {
    return impl_.Run(context, impl_.urgent(),
                     [this, request = *request](const AdminOperations::Sink& sink) {
                       return impl_.operations().Evict(request, sink);
                     });
  }
  grpc::ServerWriteReactor<v1::OperationProgress>* ForgetStream(
      grpc::CallbackServerContext* context, const v1::ForgetStreamRequest* request) override {
    return impl_.Run(context, impl_.urgent(),
                     [this, request = *request](const AdminOperations::Sink& sink) {
                       return impl_.operations().ForgetStream(request, sink);
                     });
  }
  grpc::ServerWriteReactor<v1::OperationProgress>* Boundary(
      grpc::CallbackServerContext* context, const v1::AdminBoundaryRequest*) override {
    return impl_.Run(context, impl_.work(), [this](const AdminOperations::Sink& sink) {
      return impl_.operations().Boundary(sink);
    });
  }

 private:
  Impl& impl_;
};

AdminService::AdminService(AdminOperations& operations, const Clock& clock, Options options)
    : impl_(std::make_unique<Impl>(operations, clock, std::move(options))) {}
AdminService::~AdminService() = default;

grpc::Service* AdminService::AddServer() {
  servers_.push_back(std::make_unique<Server>(*impl_));
  return servers_.back().get();
}
v1::StatusReply AdminService::Status() const { return impl_->Status(); }
void AdminService::Stop() { impl_->Stop(); }

}  // namespace dws
