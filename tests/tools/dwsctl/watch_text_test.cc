#include "tools/dwsctl/text/watch_text.h"

#include <catch2/catch.hpp>

#include "tools/dwsctl/base/printable.h"

namespace dws::dwsctl {
namespace {

v1::StatusReply ReceiverReply() {
  v1::StatusReply reply;
  reply.set_daemon("dws-receiver");
  reply.set_ready(true);
  reply.set_unix_seconds(1'772'366'405);
  v1::ReceiverStatus& receiver = *reply.mutable_receiver();
  receiver.set_receiver_id("rollout-0");
  receiver.set_committed_version(127);
  receiver.set_newest_version(128);
  receiver.set_version_lag(1);
  receiver.set_target_version(128);
  receiver.set_stage("fetching");
  receiver.set_stage_done_bytes(45 << 20);
  receiver.set_stage_total_bytes(100 << 20);
  v1::LastCommit& commit = *receiver.mutable_last_commit();
  commit.set_version(127);
  commit.set_fetched_bytes(1'258'291);
  commit.set_nnz(83);
  commit.set_elements(10'000);
  commit.set_fetch_seconds(0.1);
  commit.set_pause_seconds(0.0021);
  return reply;
}

v1::StatusReply SenderReply() {
  v1::StatusReply reply;
  reply.set_daemon("dws-sender");
  reply.set_ready(true);
  v1::SenderStatus& sender = *reply.mutable_sender();
  sender.set_trainer_present(true);
  sender.set_newest_version(128);
  for (uint64_t version = 126; version <= 128; ++version) {
    v1::VersionStatus& status = *sender.add_versions();
    status.set_version(version);
    status.set_nnz(83);
    status.set_elements(10'000);
    status.set_wire_bytes(2 << 20);
    status.set_capture_seconds(0.0124);
    status.set_age_seconds(static_cast<double>(128 - version));
  }
  for (const uint64_t committed : {128, 126}) {
    v1::ReceiverPeer& peer = *sender.add_receivers();
    peer.set_present(true);
    peer.set_committed_version(committed);
  }
  sender.add_receivers()->set_committed_version(3);  // absent, so it is not waited for
  sender.set_receivers_present(2);
  sender.set_receivers_absent(1);
  sender.mutable_versions(2)->set_committed(1);
  return reply;
}

std::vector<std::string> Table(const std::vector<WatchRow>& rows, size_t columns) {
  return FormatWatchTable(rows, columns, false);
}

}  // namespace

TEST_CASE("watch fits a sender and a receiver into 79 columns", "[dwsctl]") {
  const std::vector<WatchRow> rows = {MakeWatchRow(SenderReply(), nullptr),
                                      MakeWatchRow(ReceiverReply(), nullptr)};
  CHECK(Table(rows, 79) ==
        std::vector<std::string>{
            "daemon    version  lag density  wire stage                        pause    rate",
            "sender 0      128    2   0.83%  2.0M 1 of 2 have it [##---] 50%  12.4ms  2.0M/s",
            "rollout-0     127    1   0.83%  1.2M fetching [####-------] 45%   2.1ms   12M/s"});
}

TEST_CASE("watch counts receivers that the status does not list", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  reply.mutable_sender()->set_receivers_present(1000);
  reply.mutable_sender()->mutable_versions(2)->set_committed(999);
  CHECK(MakeWatchRow(reply, nullptr).stage == "999 of 1000 have it");
}

TEST_CASE("watch leaves out columns on a narrow terminal and no line is too wide", "[dwsctl]") {
  std::vector<WatchRow> rows = {MakeWatchRow(SenderReply(), nullptr),
                                MakeWatchRow(ReceiverReply(), nullptr)};
  rows[1].name = std::string(64, 'n');
  rows[1].note = std::string(4096, 'e');
  rows[0].version = "18446744073709551615";
  CHECK(Table(rows, 60)[0].find("rate") == std::string::npos);
  CHECK(Table(rows, 60)[0].find("pause") != std::string::npos);
  CHECK(Table(rows, 40)[0].find("stage") != std::string::npos);
  for (size_t columns = 20; columns <= 300; ++columns) {
    for (const std::string& line : Table(rows, columns)) {
      INFO(line);
      REQUIRE(TextWidth(line) <= columns);
    }
  }
}

TEST_CASE("a wide terminal shows long names completely", "[dwsctl]") {
  WatchRow row = MakeWatchRow(ReceiverReply(), nullptr);
  row.name = "rollout-engine-of-cluster-seven";
  CHECK(Table({row}, 160)[1].starts_with("rollout-engine-of-cluster-seven  "));
}

TEST_CASE("the rate of work in progress is computed between two statuses", "[dwsctl]") {
  const v1::StatusReply before = ReceiverReply();
  v1::StatusReply now = before;
  now.set_unix_seconds(before.unix_seconds() + 2);
  now.mutable_receiver()->set_stage_done_bytes(65 << 20);
  CHECK(WatchRate(now, &before) == 10 << 20);
  CHECK(WatchRate(now, nullptr) == Approx(12'582'910));  // of the last commit
  now.mutable_receiver()->set_stage("staging");          // other bytes
  CHECK(WatchRate(now, &before) == Approx(12'582'910));
  CHECK(WatchRate(v1::StatusReply(), nullptr) == 0);
}

TEST_CASE("a daemon that is not ready has the reason below its row", "[dwsctl]") {
  v1::StatusReply reply = ReceiverReply();
  reply.set_ready(false);
  reply.set_reason("waiting for engine rank 0 of 1\x1b[2J");
  const auto lines = Table({MakeWatchRow(reply, nullptr)}, 79);
  REQUIRE(lines.size() == 3);
  CHECK(lines[2] == "  not ready: waiting for engine rank 0 of 1?[2J");
}

TEST_CASE("a daemon that does not answer keeps its last figures and has the error", "[dwsctl]") {
  const v1::StatusReply last = ReceiverReply();
  const WatchRow row =
      MakeLostRow("/run/dws/r.sock", &last, UnavailableError("connection refused"));
  CHECK(row.name == "rollout-0");
  CHECK(row.version == "127");
  CHECK(row.stage == "no answer");
  CHECK(row.note == "connection refused");
  CHECK(MakeLostRow("/run/dws/r.sock", nullptr, UnavailableError("x")).name == "/run/dws/r.sock");
}

TEST_CASE("a draining daemon is shown as draining and a first version as full", "[dwsctl]") {
  v1::StatusReply reply = ReceiverReply();
  reply.set_drain(v1::DRAIN_STATE_DRAINING);
  reply.mutable_receiver()->mutable_last_commit()->set_nnz(0);
  const WatchRow row = MakeWatchRow(reply, nullptr);
  CHECK(row.stage == "draining");
  CHECK(row.density == "full");
}

TEST_CASE("a lag that is not known is not shown as 0", "[dwsctl]") {
  v1::StatusReply reply = ReceiverReply();
  reply.mutable_receiver()->clear_version_lag();
  CHECK(MakeWatchRow(reply, nullptr).lag == "?");
}

TEST_CASE("a plain line of watch has every figure", "[dwsctl]") {
  CHECK(FormatWatchLine(MakeWatchRow(ReceiverReply(), nullptr)) ==
        "2026-03-01 12:00:05 UTC rollout-0: version 127, lag 1, density 0.83%, wire 1.2M, fetching "
        "45%, pause 2.1ms, rate 12M/s\n");
}

TEST_CASE("colour adds only colour codes", "[dwsctl]") {
  WatchRow row = MakeWatchRow(ReceiverReply(), nullptr);
  row.mood = WatchRow::Mood::kTrouble;
  const std::string plain = FormatWatchTable({row}, 79, false)[1];
  CHECK(FormatWatchTable({row}, 79, true)[1] == "\x1b[31m" + plain + "\x1b[0m");
}

TEST_CASE("a screen is drawn over the previous one or cleared first", "[dwsctl]") {
  WatchScreen screen;
  CHECK(screen.Draw({"a", "b"}, 24, false) == "\ra\x1b[K\nb\x1b[K\n\x1b[J");
  CHECK(screen.Draw({"c"}, 24, false) == "\r\x1b[2Ac\x1b[K\n\x1b[J");
  CHECK(screen.Draw({"d"}, 24, false) == "\r\x1b[1Ad\x1b[K\n\x1b[J");
  CHECK(screen.Draw({"e"}, 24, true) == "\r\x1b[H\x1b[2Je\x1b[K\n\x1b[J");
}

TEST_CASE("a screen with few lines shows the first lines and counts the others", "[dwsctl]") {
  WatchScreen screen;
  CHECK(screen.Draw({"a", "b", "c", "d"}, 4, false) ==
        "\ra\x1b[K\nb\x1b[K\nand 2 more lines\x1b[K\n\x1b[J");
}

}  // namespace dws::dwsctl
