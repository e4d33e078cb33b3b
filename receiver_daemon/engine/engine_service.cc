#include "receiver_daemon/engine/engine_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/proto_convert/region_convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/sockets/unix_socket.h"
#include "receiver_daemon/engine/lease_stream.h"

namespace dws {
namespace {

// We answer this long before the caller's deadline, so that it still receives the answer.
constexpr std::chrono::milliseconds kAnswerMargin{200};

Result<std::vector<ViewRange>> RangesOf(const v1::ParameterView& message) {
  const bool names_one = message.dim() != 0 || message.begin() != 0 || message.end() != 0;
  if ((message.whole() && (names_one || !message.ranges().empty())) ||
      (names_one && !message.ranges().empty())) {
    return InvalidArgumentError(
        "view '{}' of tensor '{}' names more than one of: all, one range, {} ranges; expected one",
        message.engine_name(), message.tensor(), message.ranges_size());
  }
  if (message.whole()) return std::vector<ViewRange>();
  if (message.ranges().empty()) {
    return std::vector<ViewRange>{
        {.dim = message.dim(), .range = {.begin = message.begin(), .end = message.end()}}};
  }
  std::vector<ViewRange> ranges;
  for (const v1::DimRange& range : message.ranges()) {
    ranges.push_back({.dim = range.dim(), .range = {.begin = range.begin(), .end = range.end()}});
  }
  return ranges;
}

Result<EngineView> ParseView(const v1::ParameterView& message) {
  DWS_ASSIGN_OR_RETURN(const DType dtype, FromProto(message.dtype()));
  if (message.engine_name().size() > limits::kTensorNameBytesMax * 2) {
    return InvalidArgumentError("an engine name has {} bytes, at most {} are supported",
                                message.engine_name().size(), limits::kTensorNameBytesMax * 2);
  }
  if (message.shape_size() > static_cast<int>(limits::kTensorRankMax) ||
      message.ranges_size() > static_cast<int>(limits::kTensorRankMax)) {
    return InvalidArgumentError(
        "view '{}' has {} dimensions and {} ranges, at most {} are supported",
        message.engine_name(), message.shape_size(), message.ranges_size(), limits::kTensorRankMax);
  }
  DWS_ASSIGN_OR_RETURN(std::vector<ViewRange> ranges, RangesOf(message));
  return EngineView{.engine_name = message.engine_name(),
                    .tensor = message.tensor(),
                    .dtype = dtype,
                    .ranges = std::move(ranges),
                    .shape = {message.shape().begin(), message.shape().end()},
                    .strides = {message.strides().begin(), message.strides().end()},
                    .region = message.region(),
                    .offset_bytes = message.offset_bytes()};
}

Result<AttachWish> ParseWish(const v1::AttachRequest& message) {
  if (static_cast<size_t>(message.views_size()) > limits::kViewsMax) {
    return InvalidArgumentError("{} views, at most {} are supported", message.views_size(),
                                limits::kViewsMax);
  }
  AttachWish wish{.engine_rank = message.engine_rank(),
                  .engine_world_size = message.engine_world_size(),
                  .regions = {},
                  .views = {},
                  .excluded = {message.excluded().begin(), message.excluded().end()},
                  .has_hook = message.has_post_commit_hook(),
                  .commits_on_request = message.commits_on_request(),
                  .client = message.client()};
  DWS_ASSIGN_OR_RETURN(wish.regions, FromProto(message.regions()));
  for (const v1::ParameterView& view : message.views()) {
    DWS_ASSIGN_OR_RETURN(EngineView converted, ParseView(view));
    wish.views.push_back(std::move(converted));
  }
  return wish;
}

TimePoint DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  const auto left =
      std::chrono::duration_cast<Duration>(std::min<std::chrono::system_clock::duration>(
          context.deadline() - std::chrono::system_clock::now(), limits::kAttachDeadlineMax));
  return clock.Now() + std::max<Duration>(left - kAnswerMargin, Duration::zero());
}

// A call that waits for the end of a boundary. Lifecycle: owns itself until OnDone.
class BoundaryWait final : public grpc::ServerUnaryReactor {
 public:
  BoundaryWait(CommitBoundary& boundary, uint64_t id, std::function<void()> fill)
      : boundary_(boundary), id_(id), fill_(std::move(fill)) {}

  // Finishes the call, once.
  CommitBoundary::Ended AtEnd() {
    return [this](const Status& status) {
      if (status.ok()) fill_();
      Finish(ToGrpc(status));
    };
  }
  // Drops only the boundary that this call opened: the id may be another call's.
  void OnCancel() override {
    if (boundary_.Drop(id_, this)) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  CommitBoundary& boundary_;
  const uint64_t id_;  // that a cancelled call gives up
  const std::function<void()> fill_;
};

Status CheckBoundaryId(uint64_t id) {
  if (id > 0 && id < CommitBoundary::kOwnIds) return OkStatus();
  return InvalidArgumentError("boundary_id is {}, expected a random number from 1 to {}", id,
                              CommitBoundary::kOwnIds - 1);
}

}  // namespace

grpc::ServerUnaryReactor* EngineServiceImpl::Attach(grpc::CallbackServerContext* context,
                                                    const v1::AttachRequest* request,
                                                    v1::AttachReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Result<AttachWish> wish = ParseWish(*request);
  if (!wish.ok()) {
    reactor->Finish(ToGrpc(wish.status()));
    return reactor;
  }
  wish->peer = PeerOfCall(context->peer());
  attaches_.Submit(
      *std::move(wish), DeadlineOf(*context, clock_), [context] { return context->IsCancelled(); },
      [this, reactor, reply](Result<AttachGrant> grant) {
        if (grant.ok()) {
          reply->set_token(std::string(AsText(grant->token)));
          reply->set_handle_socket(handle_socket_);
          reply->set_generation(grant->generation.value());
        }
        reactor->Finish(ToGrpc(grant.status()));
      });
  return reactor;
}

grpc::ServerBidiReactor<v1::LeaseUp, v1::LeaseDown>* EngineServiceImpl::Lease(
    grpc::CallbackServerContext*) {
  return LeaseStream::Start(registry_);
}

grpc::ServerUnaryReactor* EngineServiceImpl::Why(grpc::CallbackServerContext* context,
                                                 const v1::WhyRequest*, v1::WhyReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reply->set_waits_for(questions_.why());
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* EngineServiceImpl::Boundary(grpc::CallbackServerContext*,
                                                      const v1::BoundaryRequest* request,
                                                      v1::BoundaryReply* reply) {
  const uint64_t id = request->boundary_id();
  auto* const wait =
      new BoundaryWait(boundary_, id, [this, reply] { reply->set_version(questions_.version()); });
  Status begun = CheckBoundaryId(id);
  if (begun.ok()) begun = boundary_.Begin(id, request->stays(), wait->AtEnd(), wait);
  if (!begun.ok()) wait->Finish(ToGrpc(begun));
  return wait;
}

grpc::ServerUnaryReactor* EngineServiceImpl::EndBoundary(grpc::CallbackServerContext* context,
                                                         const v1::EndBoundaryRequest* request,
                                                         v1::BoundaryReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  boundary_.End(request->boundary_id(), [this, reactor, reply](const Status& status) {
    reply->set_version(questions_.version());
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

}  // namespace dws
