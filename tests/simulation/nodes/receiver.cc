// The daemon's lifecycle, its worker's thread, and its engine. receiver_links.cc has the network.
#include "tests/simulation/nodes/receiver.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/model/limits.h"
#include "tests/simulation/nodes/receiver_parts.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

constexpr Time kPauseTimeout = kRoundTrip / 2;
constexpr Time kDigestTime = kRoundTrip / 4;   // to read all memory
constexpr Time kWriteTime = kRoundTrip / 200;  // between two failpoints of a commit

// The receiver whose worker runs; failpoints and waits cannot get it in another way.
Receiver* running = nullptr;

std::vector<std::string> AddressesOf(uint32_t ranks) {
  std::vector<std::string> addresses;
  for (uint32_t slot = 0; slot < ranks; ++slot) addresses.push_back(fmt::format("sender:{}", slot));
  return addresses;
}

std::unique_ptr<CommitGroup> MakeGroup(GroupPlace place, const Receiver& receiver,
                                       EngineRegistry& registry, ChangeSignal& changed,
                                       const CommitPolicy& policy) {
  if (place.member_count == 1) return nullptr;
  const std::optional<VersionAt> decided = receiver.decided();
  if (decided.has_value()) receiver.world().See("a leader starts with a decision open");
  return std::make_unique<CommitGroup>(std::move(place), receiver.name(), decided, registry,
                                       receiver.world().clock, changed, policy);
}

}  // namespace

Status Receiver::DiskLedger::Append(const ReceiverRecord& record) {
  if (std::holds_alternative<CommitAbandoned>(record)) owner_.world().See("a commit is abandoned");
  const Status status = owner_.Await<Status>(
      [&](std::function<void(Status)> done) { owner_.disk_.Append(record, std::move(done)); });
  if (std::holds_alternative<VersionCommitted>(record)) owner_.written_ = true;
  return status;
}

// Generations are higher than those of any earlier process.
Receiver::Daemon::Daemon(Receiver& owner)
    : ledger(owner),
      subscription(AddressesOf(owner.world().ranks), ledger.state().stream(), changed,
                   owner.world().clock, owner.world().wall_clock),
      registry(Generation(owner.world().events.now() + 1), changed,
               owner.grouped() ? Coverage::kShare : Coverage::kWhole),
      group(MakeGroup(owner.Place(), owner, registry, changed, owner.policy_)),
      beside(owner),
      remote(owner),
      sources({&beside, &remote}, {}),
      worker({.subscription = subscription,
              .registry = registry,
              .senders = owner,
              .sources = sources,
              .ledger = ledger,
              .pool = pool,
              .clock = owner.world().clock,
              .changed = changed,
              .requests = requests,
              .on_readiness = {},
              .on_commit = [&owner](const CommitReport&) { ++owner.world().commits; },
              .liveness = nullptr,
              .group = group.get()},
             {.prepare = {.spool_folder = "/tmp",
                          .staging_bytes_max = owner.world().staging_bytes_max},
              .pause_timeout = std::chrono::microseconds(kPauseTimeout),
              .commit_policy = owner.policy_}) {}

Receiver::Receiver(World& world, uint32_t site, std::string name, Engine& engine, Members members,
                   uint32_t index, const CommitPolicy& policy)
    : Node(world, site, std::move(name)),
      members_(std::move(members)),
      index_(index),
      policy_(index == 0 ? policy : CommitPolicy()),
      engine_(engine),
      disk_(*this) {
  if (world.options.mutation == Mutation::kDropFsync) disk_.DropSyncs();
}

Receiver::~Receiver() { worker_.reset(); }

GroupPlace Receiver::Place() const {
  return {.group_id = "group",
          .index = index_,
          .member_count = static_cast<uint32_t>(members_->size()),
          .leader_address = leads() ? "" : "leader"};
}

void Receiver::OnStart() {
  daemon_ = std::make_unique<Daemon>(*this);
  daemon_->changed.Notify();  // so that Changes never waits for a first change
  idle_ = kicked_ = committing_ = false;
  read_of_ = 0;
  links_.assign(world().ranks, nullptr);
  delays_.assign(world().ranks, Micros(limits::kReconnectDelayMin));
  wires_.assign(members_->size(), nullptr);
  for (uint32_t slot = 0; slot < world().ranks; ++slot) Connect(slot);
  if (grouped() && leads()) TickGroup();
  open_ = 0;
  if (policy_.holds()) NameBoundaries();
  if (grouped() && !leads()) ConnectToLeader();
  worker_ = std::make_unique<Fiber>([this] { Work(); });
  After(1, [this] { Resume(); });
}

void Receiver::OnCrash() {
  worker_.reset();  // unwinds through the other parts, which are destroyed later
  daemon_.reset();
  disk_.OnCrash();
  links_.clear();
  wires_.clear();
  leader_link_.reset();
  leader_connection_.reset();
  engine_.OnReceiverGone();
}

std::optional<VersionAt> Receiver::believed() const {
  const bool current = engine_.up() && engine_.attachment() == read_of_;
  if (daemon_ == nullptr || !current) return std::nullopt;
  return daemon_->worker.status().live;
}

std::optional<VersionAt> Receiver::decided() const {
  const std::optional<GroupDecided>& open = disk_.state().decided();
  if (!open.has_value()) return std::nullopt;
  return VersionAt{.stream = open->stream, .version = open->version};
}

bool Receiver::HasCommitted(const VersionAt& at) const {
  const auto highest = committed_.find(at.stream);
  return highest != committed_.end() && highest->second >= at.version;
}

// Worker::RunOnce decides; only the waits are simulated.
void Receiver::Work() {
  while (true) {
    const uint64_t seen = Changes();
    const bool had = daemon_->worker.status().live.has_value();
    const Worker::Turn turn = daemon_->worker.RunOnce();
    committing_ = false;
    const bool has = daemon_->worker.status().live.has_value();
    if (has && !had && !fetched_) world().See("an engine keeps what it had");
    CheckStaging();
    CheckHeld();
    if (turn.retry) {
      if (disk_.state().open_intent().has_value()) world().See("a commit is torn");
      Sleep(Micros(turn.wait));
    } else if (turn.wait > Duration::zero()) {
      AwaitChange(seen, turn.wait);
    }
  }
}

void Receiver::AwaitChange(uint64_t seen, Duration longest) {
  if (Changes() > seen) return;
  seen_ = seen;
  idle_ = true;
  After(Micros(longest), [this, wait = ++wait_] {
    if (wait == wait_) Wake();
  });
  worker_->Suspend();
}

void Receiver::Sleep(Time time) {
  Await<bool>([&](const std::function<void(bool)>& done) { After(time, [done] { done(true); }); });
}

uint64_t Receiver::Changes() { return daemon_->changed.WaitBeyond(0, Duration::zero()); }

void Receiver::Kick() {
  if (!idle_ || kicked_ || Changes() <= seen_) return;
  kicked_ = true;
  After(1, [this] {
    kicked_ = false;
    Wake();
  });
}

void Receiver::Wake() {
  if (std::exchange(idle_, false)) Resume();
}

void Receiver::Resume() {
  running = this;
  SetFailpointHook([](std::string_view name) { return running->OnFailpoint(name); });
  wait_hook = [](Duration timeout) { running->Sleep(Micros(timeout)); };
  worker_->Resume();
  wait_hook = nullptr;
  SetFailpointHook({});
  running = nullptr;
  world().Touch();
}

Status Receiver::OnFailpoint(std::string_view name) {
  if (name == "receiver.attach.after_digests") {
    engine_.OnRead();
    read_of_ = attachment_;
    fetched_ = false;
    Sleep(kDigestTime);
    return OkStatus();
  }
  if (name == "receiver.commit.inside_apply" && !fetched_full_) {
    world().See("a delta is too large to stage");
  }
  if (name == "receiver.commit.after_scatter") written_to_ = attachment_;
  if (name == "group.commit.before_write") written_ = false;
  if (name == "group.commit.after_write" && !written_) {
    world().See("a member cannot write");
    if (disk_.state().open_intent().has_value()) world().See("a commit is torn");
  }
  if (name == "receiver.commit.after_intent") {
    committing_ = true;
    CheckStaging();
    CheckBoundary();
  }
  Sleep(kWriteTime);
  // A disk that loses spooled bytes.
  if (world().faulty && world().random.Chance(5)) return DataLossError("the spool lost bytes");
  return OkStatus();
}

void Receiver::CheckStaging() {
  const uint64_t bytes = daemon_->worker.status().staging_bytes;
  if (bytes > 0) world().See("bytes are staged");
  if (bytes <= world().staging_bytes_max) return;
  world().Violate("{} has staged {} bytes, its cap is {}", name(), bytes,
                  world().staging_bytes_max);
}

// Some pass, some stay for a while; once the faults have stopped one stays for good.
void Receiver::NameBoundaries() {
  After(world().random.Below(2 * kRoundTrip) + 1, [this] {
    OpenBoundary();
    if (world().faulty) NameBoundaries();
  });
}

void Receiver::OpenBoundary() {
  const bool stays = !world().faulty || world().random.Chance(300);
  const uint64_t id = ++boundaries_;
  ++open_;
  const Status begun =
      daemon_->worker.boundary().Begin(id, stays, [this](const Status&) { --open_; });
  DWS_CHECK(begun.ok());
  Kick();
  if (!stays || !world().faulty) return;
  After(world().random.Below(kRoundTrip),
        [this, id] { daemon_->worker.boundary().End(id, [](const Status&) {}); });
}

void Receiver::CheckHeld() {
  const WorkerStatus status = daemon_->worker.status();
  if (status.replaced > 0) {
    world().See(grouped() ? "a held round is replaced" : "a held version is replaced");
  }
  if (!status.held_since.has_value()) return;
  world().See(grouped() ? "a group holds a round" : "an engine is held");
  if (policy_.kind != CommitPolicy::Kind::kMaxBehind || status.stage != "staged" || grouped())
    return;
  // A stream that has come since then makes another version the target.
  if (!status.live.has_value() || status.live->stream != daemon_->subscription.stream()) return;
  const uint64_t behind = status.target->value() - status.live->version.value();
  if (behind <= policy_.max_behind) return;
  world().Violate("{} holds a version back that is {} ahead, at most {} are allowed", name(),
                  behind, policy_.max_behind);
}

// A commit group's leader has decided long before; memory that is not proved waits for its commit.
void Receiver::CheckBoundary() {
  const WorkerStatus status = daemon_->worker.status();
  const bool proved = status.live.has_value() && status.state_token != Digest();
  if (policy_.kind != CommitPolicy::Kind::kBoundary || grouped() || !proved) return;
  world().See("an engine commits at a boundary");
  if (open_ == 0) world().Violate("{} commits between two boundaries", name());
}

bool Receiver::Attach() {
  const Result<LayoutSetPtr> layouts = daemon_->subscription.Layouts();
  if (!layouts.ok()) return false;
  const std::vector<uint64_t> region_bytes = {engine_.memory_bytes()};
  auto mapping = MapEngine(**layouts, engine_.Views(), region_bytes, {});
  DWS_CHECK(mapping.ok());
  EngineRegistry& registry = daemon_->registry;
  const Result<Generation> generation =
      registry.Reserve({.engine_rank = 0,
                        .engine_world_size = 1,
                        .has_hook = engine_.has_hook(),
                        .client = engine_.name(),
                        .regions = {{.size_bytes = region_bytes[0]}},
                        .views = engine_.Views(),
                        .mapping = *std::move(mapping),
                        .layouts = *layouts});
  if (!generation.ok()) return false;
  generation_ = *generation;
  attachment_ = engine_.attachment();
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(engine_.MemoryDescriptor());
  DWS_CHECK(registry.OnDescriptors(generation_, std::move(descriptors), UniqueFd()).ok());
  const std::shared_ptr<EngineLease> lease = *registry.FindLease(0, generation_);
  const auto send = [this, weak = std::weak_ptr(lease)](const LeaseCommand& command) {
    if (const auto on = weak.lock()) OnCommand(on, command);
  };
  DWS_CHECK(
      lease->Open({.send = send, .end = [this](const Status&) { engine_.OnReceiverGone(); }}).ok());
  registry.OnLeaseChanged();
  world().Trace("{}: its engine attached, generation {}", name(), generation_.value());
  Kick();
  return true;
}

void Receiver::OnEngineGone() {
  daemon_->registry.End(generation_, UnavailableError("the engine is gone"));
  Kick();
}

void Receiver::OnCommand(const std::shared_ptr<EngineLease>& lease, const LeaseCommand& command) {
  if (const auto* pause = std::get_if<PauseCommand>(&command)) {
    engine_.Pause(attachment_, [lease, id = pause->pause_id](const Status& status) {
      if (status.ok()) lease->OnPaused({.pause_id = id, .generation = lease->generation()});
    });
  } else if (const auto* hook = std::get_if<PostCommitCommand>(&command)) {
    lease->OnPostCommitDone(hook->pause_id, engine_.PostCommit());
  } else {
    const EngineVersion& version = std::get<ResumeCommand>(command).version;
    engine_.Resume(attachment_, {.stream = version.stream, .version = version.version});
  }
}

}  // namespace dws::sim
