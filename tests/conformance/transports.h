// The transports from a rank's state to a receiver behind one interface: a real sender side and the
// receiver's real senders and sources, in one process. Here a shared directory alone;
// grpc_transport.h has the connection.
#pragma once

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/transport/shared_fs/names.h"
#include "receiver_daemon/transfer/shared/shared_links.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/shared/shared_publisher.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/rank.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"

namespace dws {

// Threads: one, the test's.
class Transport {
 public:
  // `hub_clock`: the sender's; null: real time.
  explicit Transport(const Clock* hub_clock = nullptr)
      : hub_(hub_clock != nullptr ? *hub_clock : clock_, "job") {}
  virtual ~Transport() = default;

  // The sender side: a trainer registered; a version was published.
  virtual void Registered(const RankStatePtr& state) = 0;
  virtual void Published() = 0;
  // Flips a stored bit of the delta object that leads to `version`; again: flips it back.
  virtual void Damage(const RankState& state, uint64_t version) = 0;
  // The receiver side.
  virtual void StartReceiver() = 0;
  virtual void StopReceiver() = 0;
  virtual void CancelFetches() = 0;
  virtual Senders& senders() = 0;
  Group group() { return {.senders = senders(), .sources = *sources_}; }
  const SourceChain& sources() const { return *sources_; }

  ReceiverHub& hub() { return hub_; }
  Subscription& subscription() { return *subscription_; }

 protected:
  void MakeSubscription(std::string name) {
    subscription_ = std::make_unique<Subscription>(std::vector<std::string>{std::move(name)},
                                                   std::nullopt, changed_, clock_);
  }

  RealClock clock_;
  ReceiverHub hub_;
  ChangeSignal changed_;
  std::unique_ptr<Subscription> subscription_;
  std::optional<SourceChain> sources_;  // of the receiver; ends before them
};

inline void FlipLastBit(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const auto last = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
  REQUIRE(file.good());
}

// A directory that versions are published to; the test does the work of the sender's thread.
class PublishedFolder {
 public:
  PublishedFolder(ReceiverHub& hub, size_t anchor_every, size_t versions_max, bool from_base)
      : publisher_(
            {.dir = {.root = root_.path(), .anchor_every = anchor_every, .from_base = from_base},
             .job_id = "job",
             .trainer_rank = TrainerRank(0),
             .key = {},
             .versions_max = versions_max},
            files_, hub, [](const v1::SharedReport&, bool) {}) {}

  void Work() {
    while (true) {
      const Result<bool> more = publisher_.Step();
      INFO(ToString(more.status()));
      REQUIRE(more.ok());
      if (!*more) return;
    }
  }
  // Flips a bit at the end of a version's file.
  void Damage(const RankState& state, uint64_t version, std::string_view name) const {
    FlipLastBit(fmt::format(
        "{}/job/rank-00000/{}/{}/{}", root(), shared::StreamName(state.stream),
        shared::VersionFolderName({.version = WeightVersion(version), .epoch = state.rank_epoch}),
        name));
  }

  const std::string& root() const { return root_.path(); }
  FileSystem& files() { return files_; }
  SharedPublisher& publisher() { return publisher_; }

 private:
  TempFolder root_;
  PosixFileSystem files_;
  SharedPublisher publisher_;
};

// The directory alone.
class SharedTransport final : public Transport {
 public:
  explicit SharedTransport(size_t anchor_every = 32, size_t versions_max = 64,
                           bool from_base = false)
      : folder_(hub_, anchor_every, versions_max, from_base) {
    MakeSubscription("rank-00000");
  }
  ~SharedTransport() override {
    StopReceiver();
    folder_.publisher().Stop();
    hub_.Stop();
  }

  void Registered(const RankStatePtr& state) override {
    hub_.Welcome(state);
    state_ = state;
  }
  void Published() override {
    folder_.publisher().Offer(state_);
    folder_.Work();
  }
  void Damage(const RankState& state, uint64_t version) override {
    folder_.Damage(state, version, "delta");
  }
  void StartReceiver() override {
    MakeSubscription("rank-00000");
    auto links = SharedLinks::Create({.root = folder_.root(),
                                      .name = {.job_id = "job", .receiver_id = "r0"},
                                      .ranks = 1,
                                      .pool = &pool_,
                                      .poll = std::chrono::milliseconds(5),
                                      .retry_delay = std::chrono::milliseconds(1)},
                                     folder_.files(), *subscription_);
    REQUIRE(links.ok());
    links_ = *std::move(links);
    sources_.emplace(std::vector<Source*>{links_.get()}, SourceChain::Options());
    links_->Start();
  }
  void StopReceiver() override {
    sources_.reset();
    links_.reset();
  }
  void CancelFetches() override { links_->CancelFetches(); }
  Senders& senders() override { return *links_; }
  Source& source() { return *links_; }
  PublishedFolder& folder() { return folder_; }

 private:
  ThreadPool pool_{1};
  PublishedFolder folder_;
  RankStatePtr state_;
  std::unique_ptr<SharedLinks> links_;
};

}  // namespace dws
