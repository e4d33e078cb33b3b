// One thread ticks all connections; each of them decides by itself when it connects again.
#include "sender_daemon/on_demand/gather/owner_links.h"

#include "common/model/limits.h"
#include "common/model/unit_index.h"
#include "common/service/peers/peer_address.h"

namespace dws {

Result<std::unique_ptr<OwnerLinks>> OwnerLinks::Create(const Options& options,
                                                       TrainListener& listener,
                                                       const Clock& clock) {
  const size_t count = options.addresses.size();
  if (count == 0 || count > limits::kTrainRanksMax || options.self.value() >= count) {
    return InvalidArgumentError("trainer rank {} of {} owners, at most {} are supported",
                                options.self.value(), count, limits::kTrainRanksMax);
  }
  for (const std::string& address : options.addresses) {
    DWS_RETURN_IF_ERROR(CheckPeerAddress(address, "an owner"));
  }
  return std::unique_ptr<OwnerLinks>(new OwnerLinks(options, listener, clock));
}

OwnerLinks::OwnerLinks(const Options& options, TrainListener& listener, const Clock& clock)
    : ticks_([this] {
        for (const auto& link : links_) link->Tick();
        return limits::kTick;
      }) {
  for (uint32_t r = 0; r < options.addresses.size(); ++r) {
    links_.push_back(std::make_unique<OwnerLink>(OwnerLinkOptions{.job_id = options.job_id,
                                                                  .self = options.self,
                                                                  .owner = TrainerRank(r),
                                                                  .address = options.addresses[r],
                                                                  .tls = options.tls,
                                                                  .host_id = options.host_id},
                                                 changed_, listener, clock));
  }
  ticks_.Start();
}

OwnerLinks::~OwnerLinks() { Stop(); }

std::vector<std::string> OwnerLinks::names() const {
  std::vector<std::string> names;
  for (const auto& link : links_) names.push_back(link->name());
  return names;
}

void OwnerLinks::Stop() {
  ticks_.Stop();
  for (const auto& link : links_) link->Stop();
}

}  // namespace dws
