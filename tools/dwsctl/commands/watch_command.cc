#include <fmt/format.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/dwsctl/base/interrupts.h"
#include "tools/dwsctl/base/json.h"
#include "tools/dwsctl/client/watch_link.h"
#include "tools/dwsctl/text/text_table.h"
#include "tools/dwsctl/text/watch_text.h"

namespace dws::dwsctl {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kDaemonsMax = 256;
constexpr milliseconds kRedrawInterval{100};

struct WatchFlags {
  TargetFlags connection;
  std::vector<std::string> addresses;
  std::vector<std::string> sockets;
  double interval_seconds = 1;
  uint64_t count = 0;  // 0: until ^C
  bool once = false;
  bool json = false;
};

// One of the watched daemons.
struct Watched {
  DaemonTarget target;
  std::optional<v1::StatusReply> last;
  std::optional<Status> trouble;  // set while the daemon does not answer
  uint64_t events = 0;
  WatchRow row;
  std::unique_ptr<WatchLink> link;
};

ExitCode CodeOf(const Watched& daemon) {
  if (!daemon.trouble.has_value()) {
    return daemon.last.has_value() && daemon.last->ready() ? ExitCode::kOk : ExitCode::kNotReady;
  }
  const bool silent =
      absl::IsUnavailable(*daemon.trouble) || absl::IsDeadlineExceeded(*daemon.trouble);
  return silent ? ExitCode::kUnreachable : ExitCode::kRefused;
}

class WatchRun {
 public:
  WatchRun(const WatchFlags& flags, Console& console)
      : flags_(flags),
        console_(console),
        redraws_(!flags.json && console.out_is_terminal()),
        count_(flags.once ? 1 : flags.count) {}

  ExitCode Run() {
    // Before the links: their threads must inherit the blocked signals.
    auto interrupts = Interrupts::Install();
    if (!interrupts.ok()) return Fail(console_, interrupts.status());
    auto inbox = WatchInbox::Create();
    if (!inbox.ok()) return Fail(console_, inbox.status());
    if (Status status = Connect(**inbox); !status.ok()) {
      daemons_.clear();  // before the inbox
      return Fail(console_, status);
    }
    if (redraws_) Redraw(false);
    const bool interrupted = Loop(**interrupts, **inbox);
    if (redraws_) console_.Out(screen_.End());
    ExitCode code = ExitCode::kOk;
    if (!interrupted && count_ > 0) {
      for (const Watched& daemon : daemons_) code = std::max(code, CodeOf(daemon));
    }
    daemons_.clear();  // before the inbox
    return code;
  }

 private:
  Status Connect(WatchInbox& inbox) {
    DWS_ASSIGN_OR_RETURN(const std::vector<DaemonTarget> targets,
                         FindDaemons(flags_.addresses, flags_.sockets, flags_.connection.run_dir));
    if (targets.size() > kDaemonsMax) {
      return InvalidArgumentError("{} daemons, at most {} can be watched", targets.size(),
                                  kDaemonsMax);
    }
    const auto interval = std::chrono::duration<double>(flags_.interval_seconds);
    const auto silence_max =
        flags_.connection.timeout + milliseconds(static_cast<int64_t>(interval.count() * 1000));
    for (const DaemonTarget& target : targets) {
      DWS_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(target, flags_.connection.tls,
                                                                   flags_.connection.timeout));
      Watched& daemon = daemons_.emplace_back();
      daemon.target = target;
      daemon.row = MakeLostRow(target.text, nullptr, UnavailableError("connecting"));
      daemon.row.mood = WatchRow::Mood::kWaiting;
      daemon.row.stage = "connecting";
      daemon.row.note.clear();
      daemon.link = std::make_unique<WatchLink>(daemons_.size() - 1, std::move(client), interval,
                                                silence_max, inbox);
    }
    return OkStatus();
  }

  // Returns true if a signal ended it.
  bool Loop(Interrupts& interrupts, WatchInbox& inbox) {
    bool dirty = false;
    auto drawn = steady_clock::now();
    while (true) {
      milliseconds wait{1000};
      for (Watched& daemon : daemons_) wait = std::min(wait, daemon.link->CheckSilence());
      const auto since = std::chrono::duration_cast<milliseconds>(steady_clock::now() - drawn);
      if (dirty) wait = std::min(wait, kRedrawInterval - std::min(since, kRedrawInterval));
      std::array<pollfd, 3> events = {{{.fd = interrupts.fd(), .events = POLLIN, .revents = 0},
                                       {.fd = inbox.fd(), .events = POLLIN, .revents = 0},
                                       {.fd = console_.out(), .events = 0, .revents = 0}}};
      poll(events.data(), events.size(), static_cast<int>(wait.count()) + 1);
      if ((events[2].revents & POLLERR) != 0) return false;  // the reader of the output has gone

      bool resized = false;
      for (auto event = interrupts.Next(); event != Interrupts::Event::kNone;
           event = interrupts.Next()) {
        if (event == Interrupts::Event::kEnd) return true;
        resized = true;
      }
      for (WatchEvent& event : inbox.Take()) {
        if (!Take(std::move(event))) return false;
        dirty = true;
      }
      const bool done = count_ > 0 && std::all_of(daemons_.begin(), daemons_.end(),
                                                  [this](const Watched& daemon) {
                                                    return daemon.events >= count_;
                                                  });
      const bool due = dirty && steady_clock::now() - drawn >= kRedrawInterval;
      if (redraws_ && (done || due || resized)) {
        if (!Redraw(resized)) return false;
        dirty = false;
        drawn = steady_clock::now();
      }
      if (done) return false;
    }
  }

  // False: the reader of the output has gone away.
  bool Take(WatchEvent event) {
    Watched& daemon = daemons_[event.daemon];
    if (count_ > 0 && daemon.events >= count_) return true;
    ++daemon.events;
    if (auto* status = std::get_if<v1::StatusReply>(&event.what)) {
      const bool back = daemon.trouble.has_value() && daemon.last.has_value();
      daemon.row = MakeWatchRow(*status, daemon.last.has_value() ? &*daemon.last : nullptr);
      if (back && daemon.row.note.empty()) daemon.row.note = "answers again";
      daemon.last = std::move(*status);
      daemon.trouble.reset();
    } else {
      daemon.trouble = std::get<Status>(event.what);
      daemon.row = MakeLostRow(daemon.target.text,
                               daemon.last.has_value() ? &*daemon.last : nullptr, *daemon.trouble);
    }
    if (flags_.json) return console_.Out(JsonLine(daemon));
    return redraws_ || console_.Out(FormatWatchLine(daemon.row));
  }

  static std::string JsonLine(const Watched& daemon) {
    Json json = {{"target", daemon.target.text}};
    if (daemon.trouble.has_value()) {
      json["error"] = Message(*daemon.trouble);
    } else {
      json["status"] = Json::parse(ToJsonLine(*daemon.last));
    }
    return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  }

  bool Redraw(bool resized) {
    std::vector<WatchRow> rows;
    for (const Watched& daemon : daemons_) rows.push_back(daemon.row);
    // The last column stays empty, because some terminals wrap there.
    return console_.Out(
        screen_.Draw(FormatWatchTable(rows, console_.columns() - 1, console_.colour()),
                     console_.rows(), resized));
  }

  const WatchFlags& flags_;
  Console& console_;
  const bool redraws_;
  const uint64_t count_;
  std::vector<Watched> daemons_;
  WatchScreen screen_;
};

}  // namespace

void AddWatchCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<WatchFlags>();
  CLI::App* command = AddCommand(
      app, kLookGroup, "watch",
      "Shows daemons as they work, until ^C.\n"
      "\n"
      "Version, lag, density and bytes of the last version, stage, pause and throughput: a table\n"
      "that is redrawn in place on a terminal, else a line for each status. Without --address and\n"
      "--socket: all daemons of the run directory. A daemon that restarts is found again.",
      {"dwsctl watch", "dwsctl watch --address 10.0.0.5:7710 --address 10.0.0.6:7710",
       "dwsctl watch --once --json | jq -r '.status.receiver.committed_version'"},
      flags->json);
  command->add_option("--address", flags->addresses, "a daemon's TCP address; may be repeated")
      ->type_name("HOST:PORT")
      ->allow_extra_args(false);
  command->add_option("--socket", flags->sockets, "a daemon's unix socket; may be repeated")
      ->type_name(kSocketValue)
      ->allow_extra_args(false);
  command
      ->add_option("--interval", flags->interval_seconds, "time between two statuses (default 1)")
      ->type_name("SECONDS")
      ->check(CLI::Validator(CLI::Range(0.1, 3600.0)).description(""));
  auto* count =
      command->add_option("--count", flags->count, "end after this many statuses of each daemon");
  count->type_name("N")->check(CLI::Validator(CLI::PositiveNumber).description(""));
  command->add_flag("--once", flags->once, "the same as --count 1")->excludes(count);
  AddConnectionFlags(*command, flags->connection);
  command->callback([flags, &context] { context.code = WatchRun(*flags, context.console).Run(); });
}

}  // namespace dws::dwsctl
