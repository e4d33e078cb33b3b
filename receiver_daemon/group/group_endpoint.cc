#include "receiver_daemon/group/group_endpoint.h"

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {

GroupEndpoint::GroupEndpoint(const ReceiverName& name, const PeerTls& tls, CommitGroup& group,
                             const Clock& clock)
    : group_(group), name_(name), ticks_([this] {
        group_.Tick();
        if (link_ != nullptr) link_->Tick();
        return limits::kTick;
      }) {
  if (!group.place().leads()) link_ = std::make_unique<LeaderLink>(name, tls, group, clock);
}

grpc::Service* GroupEndpoint::AddService() {
  DWS_CHECK(leads());
  services_.push_back(std::make_unique<LeaderService>(name_, group_));
  return services_.back().get();
}

GroupEndpoint::~GroupEndpoint() { Stop(); }

void GroupEndpoint::Start() { ticks_.Start(); }

void GroupEndpoint::Stop() {
  // In this order: a tick uses the group and the link.
  ticks_.Stop();
  group_.Stop();
  if (link_ != nullptr) link_->Stop();
}

}  // namespace dws
