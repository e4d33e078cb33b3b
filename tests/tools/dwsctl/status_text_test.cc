#include "tools/dwsctl/text/status_text.h"

#include <catch2/catch.hpp>
#include <limits>
#include <sstream>
#include <string>

#include "tools/dwsctl/base/printable.h"

namespace dws::dwsctl {
namespace {

v1::StatusReply SenderReply() {
  v1::StatusReply reply;
  reply.set_daemon("dws-sender");
  reply.set_build_version("0.1.0");
  reply.set_job_id("run-7");
  reply.set_ready(true);
  reply.set_uptime_seconds(192);
  v1::SenderStatus& sender = *reply.mutable_sender();
  sender.mutable_stream()->set_incarnation(3);
  sender.mutable_stream()->set_id_hi(0x1234);
  sender.set_world_size(2);
  sender.set_newest_version(12);
  sender.set_snapshot_bytes(53 << 20);
  v1::VersionStatus& version = *sender.add_versions();
  version.set_version(12);
  version.set_base_version(11);
  version.set_nnz(830);
  version.set_elements(100'000);
  version.set_wire_bytes(900);
  version.set_full_bytes(200'000);
  version.set_capture_seconds(0.0124);
  return reply;
}

size_t WidestLine(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, TextWidth(line));
  return widest;
}

}  // namespace

TEST_CASE("a status names the listeners without TLS", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  CHECK(FormatStatus(reply, 100).find("insecure") == std::string::npos);
  reply.add_insecure("--listen 0.0.0.0:7700");
  reply.add_insecure("--http 0.0.0.0:7750");
  CHECK(FormatStatus(reply, 100)
            .find("  insecure  TCP without TLS: --listen 0.0.0.0:7700, --http 0.0.0.0:7750\n") !=
        std::string::npos);
}

TEST_CASE("the status of a sender has the age of its newest version once there is one",
          "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  CHECK(FormatStatus(reply, 100).find("\n  age ") == std::string::npos);
  reply.mutable_sender()->set_seconds_since_version(12.4);
  CHECK(FormatStatus(reply, 100).find("\n  age       12.4 s\n") != std::string::npos);
}

TEST_CASE("the status of a daemon that takes part in broadcasts has their state", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  CHECK(FormatStatus(reply, 100).find("broadcast") == std::string::npos);
  v1::BroadcastStatus& broadcast = *reply.mutable_sender()->mutable_broadcast();
  broadcast.set_broadcasts(12);
  broadcast.set_failed(1);
  CHECK(FormatStatus(reply, 100)
            .find("  broadcast none, versions are fetched; 12 succeeded, 1 failed\n") !=
        std::string::npos);
  broadcast.set_epoch(3);
  broadcast.set_members(4);
  CHECK(FormatStatus(reply, 100)
            .find("  broadcast epoch 3 with 4 receivers; 12 succeeded, 1 failed\n") !=
        std::string::npos);
  v1::StatusReply receiver;
  receiver.mutable_receiver()->mutable_broadcast()->set_members(4);
  receiver.mutable_receiver()->mutable_broadcast()->set_broadcasts(12);
  receiver.mutable_receiver()->mutable_broadcast()->set_failed(1);
  CHECK(FormatStatus(receiver, 100).find("  broadcast of 4 senders; 12 succeeded, 1 failed\n") !=
        std::string::npos);
}

TEST_CASE("the status of a sender that publishes slime's versions has its progress", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  CHECK(FormatStatus(reply, 200).find("slime") == std::string::npos);
  v1::SlimeStatus& slime = *reply.mutable_sender()->mutable_slime();
  slime.set_folder("/mnt/weights");
  CHECK(FormatStatus(reply, 200).find("  slime     no version in /mnt/weights\n") !=
        std::string::npos);
  slime.set_newest_version(7);
  slime.set_failing("no space left");
  CHECK(FormatStatus(reply, 200)
            .find("  slime     version 7 in /mnt/weights; failing: no space left\n") !=
        std::string::npos);
}

TEST_CASE("the status of a sender that publishes to a shared directory has its progress",
          "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  CHECK(FormatStatus(reply, 200).find("shared") == std::string::npos);
  v1::SharedStatus& shared = *reply.mutable_sender()->mutable_shared();
  shared.set_folder("/mnt/dws");
  shared.set_newest_version(12);
  shared.set_receivers(3);
  CHECK(FormatStatus(reply, 200).find("  shared    version 12 in /mnt/dws, 3 receivers\n") !=
        std::string::npos);
  shared.set_failing("no space left");
  CHECK(FormatStatus(reply, 200)
            .find("  shared    version 12 in /mnt/dws, 3 receivers; failing: no space left\n") !=
        std::string::npos);
}

TEST_CASE("the views that a sender keeps are in its status, and a receiver's in its own",
          "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  CHECK(FormatStatus(reply, 80).find("view") == std::string::npos);
  v1::ViewStatus& view = *reply.mutable_sender()->add_views();
  view.set_name("fp8-block128/deepseek,except=" + std::string(200, 'x'));
  view.set_newest_version(12);
  view.set_snapshot_bytes(3 << 20);
  view.set_retained_bytes(1 << 10);
  view.set_receivers(4);
  const std::string text = FormatStatus(reply, 80);
  CHECK(
      text.find("  fp8-block128/deepseek,except=xxxx...      12   3.0 MiB  1.0 KiB          4\n") !=
      std::string::npos);
  CHECK(WidestLine(text) <= 80);

  v1::StatusReply other;
  other.mutable_receiver()->set_receiver_id("r");
  CHECK(FormatStatus(other, 80).find("view") == std::string::npos);
  other.mutable_receiver()->set_view("mxfp8/floor");
  CHECK(FormatStatus(other, 80).find("  view      mxfp8/floor\n") != std::string::npos);
}

TEST_CASE("a sender's status names its stream, its versions and its receivers", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  v1::ReceiverPeer& receiver = *reply.mutable_sender()->add_receivers();
  receiver.set_receiver_id("rollout-0");
  receiver.set_present(true);
  receiver.set_committed_version(11);
  receiver.set_staged_version(12);
  receiver.set_fetched_bytes(1024);
  receiver.set_pause_seconds(0.0021);
  receiver.set_last_error("verify: digest of tensor 'w' differs");

  CHECK(FormatStatus(reply, 80) ==
        "dws-sender 0.1.0, job run-7, up 3 min 12 s\n"
        "  state     ready\n"
        "  stream    3:00000000000012340000000000000000\n"
        "  rank      0 of 2, epoch 0\n"
        "  trainer   absent\n"
        "  newest    12\n"
        "  memory    snapshot 53.0 MiB, retained deltas 0 B, versions 1\n"
        "\n"
        "  version  base  density   wire  reduced  capture   age  committed\n"
        "       12    11   0.83 %  900 B     222x  12.4 ms  0 us          0\n"
        "\n"
        "  receiver   state    commit  lag  staged  fetched   pause  nacks\n"
        "  rollout-0  present      11    1      12  1.0 KiB  2.1 ms      0\n"
        "    rollout-0: verify: digest of tensor 'w' differs\n");
}

TEST_CASE("a sender's status names the groups that change nearly everywhere", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  v1::DensityStatus& density = *reply.mutable_sender()->mutable_density();
  density.set_groups(12);
  CHECK(FormatStatus(reply, 80).find("dense") == std::string::npos);
  density.set_dense_groups(3);
  density.set_dense_bytes(3 << 20);
  v1::DenseGroup& group = *density.add_worst();
  group.set_name("model.layers.*.block_sparse_moe.experts.*.scales");
  group.set_elements(1000);
  group.set_changed(990);
  group.set_full_bytes(4000);
  group.set_wire_bytes(1500);
  CHECK(FormatStatus(reply, 80).find(
            "  dense     3 of 12 groups of tensors, 3.0 MiB of the newest version\n"
            "\n"
            "  dense group                               density     wire  of full\n"
            "  ...s.*.block_sparse_moe.experts.*.scales  99.00 %  1.5 KiB  37.50 %\n"
            "  and 2 more\n"
            "\n"
            "  version  base") != std::string::npos);
  density.set_version_dense(true);
  CHECK(FormatStatus(reply, 80).find("version, which is\n            dense as a whole\n") !=
        std::string::npos);
  CHECK(WidestLine(FormatStatus(reply, 80)) <= 80);
}

TEST_CASE("a receiver's status names its senders and its engine ranks", "[dwsctl]") {
  v1::StatusReply reply;
  reply.set_daemon("dws-receiver");
  reply.set_build_version("0.1.0");
  reply.set_reason("waiting for engine rank 0 of 1 to attach");
  v1::ReceiverStatus& receiver = *reply.mutable_receiver();
  receiver.set_receiver_id("rollout-0");
  receiver.set_committed_version(4);
  receiver.set_target_version(5);
  receiver.set_stage("fetching");
  receiver.set_commits(4);
  receiver.set_last_pause_seconds(0.0021);
  v1::SenderPeer& sender = *receiver.add_senders();
  sender.set_address("127.0.0.1:7700");
  sender.set_connected(true);
  sender.set_newest_version(5);
  sender.set_delta_source("inline");
  sender.set_full_way("grpc");
  sender.set_full_way_reason("this sender is on another host");
  v1::EngineRankStatus& rank = *receiver.add_engine_ranks();
  rank.set_attached(true);
  rank.set_generating(true);
  rank.set_generation(1);
  rank.set_client("dws-python 0.1");
  rank.add_memory("host");

  CHECK(FormatStatus(reply, 80) ==
        "dws-receiver 0.1.0, job none, up 0 us\n"
        "  state     not ready: waiting for engine rank 0 of 1 to attach\n"
        "  receiver  rollout-0\n"
        "  stream    none yet\n"
        "  committed 4, newest offered -\n"
        "  target    5, fetching\n"
        "  commits   4, repairs 0, refused 0\n"
        "  pause     2.1 ms (last)\n"
        "  memory    staging 0 B\n"
        "  scrub     off\n"
        "\n"
        "  sender          state      rank  newest  delta by  full by\n"
        "  127.0.0.1:7700  connected     0       5  inline    grpc\n"
        "    127.0.0.1:7700: this sender is on another host\n"
        "\n"
        "  engine rank  state     engine      generation  memory  client\n"
        "            0  attached  generating           1  host    dws-python 0.1\n");
}

TEST_CASE("a receiver's status names its commit group and a leader's also the members",
          "[dwsctl]") {
  v1::GroupStatus group;
  group.set_group_id("engine-3");
  group.set_member_index(1);
  group.set_member_count(2);
  group.set_leader_address("node7:7710");
  group.set_phase("idle");
  group.set_last_error("connection refused");
  CHECK(FormatGroup(group) ==
        "engine-3, member 1 of 2, idle; leader node7:7710 not connected: connection refused");
  CHECK(FormatGroupTable(group, 80).empty());
  group.set_leader_connected(true);
  group.clear_last_error();
  group.set_phase("staged");
  CHECK(FormatGroup(group) == "engine-3, member 1 of 2, staged; leader node7:7710 connected");

  group.set_member_index(0);
  CHECK(FormatGroup(group) == "engine-3, leads 2 members, no round");
  group.set_round_phase("committing");
  group.set_round_version(5);
  group.set_decided_version(5);
  CHECK(FormatGroup(group) == "engine-3, leads 2 members, committing 5, 5 is decided");
  v1::GroupMember& first = *group.add_members();
  first.set_receiver_id("node7");
  first.set_connected(true);
  first.set_attached(true);
  first.set_live_version(4);
  first.set_staged(true);
  first.set_released(true);
  group.add_members()->set_last_error("version 5 is not offered");
  v1::StatusReply reply;
  *reply.mutable_receiver()->mutable_group() = group;
  CHECK_THAT(
      FormatStatus(reply, 80),
      Catch::Contains("  group     engine-3, leads 2 members, committing 5, 5 is decided\n") &&
          Catch::EndsWith("\n  member  receiver  state          engine    version  round\n"
                          "       0  node7     connected      released        4  staged\n"
                          "       1  -         not connected  none            -  -\n"
                          "    -: version 5 is not offered\n"));
}

TEST_CASE("of many retained versions the newest are shown and the others are counted", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  for (uint64_t version = 13; version <= 40; ++version) {
    reply.mutable_sender()->add_versions()->set_version(version);
  }
  const std::string text = FormatStatus(reply, 80);
  CHECK(text.find("\n       40  ") != std::string::npos);
  CHECK(text.find("\n       31  ") != std::string::npos);
  CHECK(text.find("\n       30  ") == std::string::npos);
  CHECK(text.find("and 19 older") != std::string::npos);
}

TEST_CASE("a version without a base is shown as served in full", "[dwsctl]") {
  v1::StatusReply reply = SenderReply();
  reply.mutable_sender()->mutable_versions(0)->set_base_version(0);
  CHECK(FormatStatus(reply, 80).find("       12  full   0.83 %") != std::string::npos);
}

TEST_CASE("the longest values still fit 80 columns and stay on their line", "[dwsctl]") {
  const uint64_t huge = std::numeric_limits<uint64_t>::max() / 4;
  const std::string name(256, 'n');
  v1::StatusReply sender = SenderReply();
  sender.set_job_id(name);
  sender.set_ready(false);
  sender.set_reason(name + "\nsecond line");
  sender.mutable_sender()->mutable_versions(0)->set_wire_bytes(huge);
  sender.mutable_sender()->mutable_versions(0)->set_full_bytes(huge);
  v1::ReceiverPeer& peer = *sender.mutable_sender()->add_receivers();
  peer.set_receiver_id(name);
  peer.set_present(true);
  peer.set_committed_version(1'000'000);
  peer.set_staged_version(1'000'000);
  peer.set_fetched_bytes(huge);
  peer.set_pause_seconds(86'400);
  peer.set_last_error(std::string(4096, 'e'));
  CHECK(WidestLine(FormatStatus(sender, 80)) <= 80);
  CHECK(FormatStatus(sender, 80).find("\nsecond") == std::string::npos);

  v1::StatusReply receiver;
  receiver.mutable_receiver()->set_receiver_id(name);
  v1::SenderPeer& address = *receiver.mutable_receiver()->add_senders();
  address.set_address(name);
  address.set_newest_version(1'000'000'000);
  address.set_last_error(name);
  v1::EngineRankStatus& rank = *receiver.mutable_receiver()->add_engine_ranks();
  rank.set_engine_rank(4095);
  rank.set_generation(1'000'000);
  rank.set_client(name);
  CHECK(WidestLine(FormatStatus(receiver, 80)) <= 80);
}

TEST_CASE("a status has the daemon's build and certificate and drain state", "[dwsctl]") {
  v1::StatusReply reply;
  reply.set_daemon("dws-receiver");
  reply.set_build_version("0.1.0");
  reply.set_ready(true);
  reply.set_drain(v1::DRAIN_STATE_DRAINED);
  reply.set_unix_seconds(1'772'366'405);
  v1::BuildStatus& build = *reply.mutable_build();
  build.set_commit("0a1b2c3");
  build.set_compiler("gcc 12.2.0");
  build.set_configuration("opt static");
  build.set_protocol_major(1);
  v1::TlsStatus& tls = *reply.mutable_tls();
  tls.set_enabled(true);
  tls.set_identity("dws://run-7/receive/rollout-0");
  tls.set_expires_unix_seconds(1'772'366'405 + 86'400 * 3);
  v1::ReceiverStatus& receiver = *reply.mutable_receiver();
  receiver.set_receiver_id("rollout-0");
  receiver.set_staging_bytes(1 << 20);
  receiver.set_staging_bytes_max(256 << 20);
  receiver.set_scrub_bytes_per_second_max(64 << 20);
  receiver.set_scrub_passes(3);
  receiver.set_scrub_last_pass_unix_seconds(1'772'366'393);
  v1::LastCommit& commit = *receiver.mutable_last_commit();
  commit.set_version(128);
  commit.set_fetched_bytes(1 << 20);
  commit.set_full_bytes(120 << 20);
  commit.set_nnz(83);
  commit.set_elements(10'000);
  commit.set_fetch_seconds(0.2);
  commit.set_stage_seconds(0.1);
  commit.set_pause_seconds(0.0021);
  commit.set_commit_seconds(0.004);
  commit.set_repaired(true);
  commit.set_unix_seconds(1'772'366'400);
  v1::VersionTimes& times = *commit.mutable_times();
  times.set_total_seconds(0.35);
  times.set_early_seconds(0.02);
  times.set_fetch_seconds(0.2);
  times.set_upload_seconds(0.01);
  times.set_gate_seconds(0.025);
  times.set_acknowledge_seconds(0.001);
  CHECK(FormatStatus(reply, 80) ==
        "dws-receiver 0.1.0, job none, up 0 us\n"
        "  state     ready\n"
        "  drain     drained; dwsctl undrain ends it\n"
        "  build     commit 0a1b2c3, gcc 12.2.0, opt static, protocol 1.0\n"
        "  tls       on, dws://run-7/receive/rollout-0, until 2026-03-04 12:00:05 UTC (in\n"
        "            3 d 0 h)\n"
        "  receiver  rollout-0\n"
        "  stream    none yet\n"
        "  committed -, newest offered -\n"
        "  target    nothing in flight\n"
        "  commits   0, repairs 0, refused 0\n"
        "  pause     0 us (last)\n"
        "  last      version 128, 1.0 MiB fetched, 120x less than in full, density 0.83\n"
        "            %, some tensors in full; fetch 200.0 ms, stage 100.0 ms, commit 4.0\n"
        "            ms, pause 2.1 ms; 2026-03-01 12:00:00 UTC\n"
        "  took      350.0 ms since it was announced: fetch 200.0 ms, upload 10.0 ms,\n"
        "            gate 25.0 ms, acknowledge 1.0 ms; 20.0 ms before that\n"
        "  memory    staging 1.0 MiB of 256.0 MiB\n"
        "  scrub     64.0 MiB/s, 3 full passes, the last 12.0 s ago\n"
        "\n"
        "  no sender is configured\n"
        "\n"
        "  no engine rank has attached\n");
}

TEST_CASE("a receiver's status has the age of its version and the pace of its scrub", "[dwsctl]") {
  v1::StatusReply reply;
  v1::ReceiverStatus& receiver = *reply.mutable_receiver();
  receiver.set_seconds_since_version(600);
  receiver.set_scrub_bytes_per_second_max(1 << 30);
  receiver.set_scrub_pass_seconds_target(300);
  receiver.set_scrub_pass_seconds_expected(300);
  std::string text = FormatStatus(reply, 100);
  CHECK(text.find("  age       10 min 0 s with this version\n") != std::string::npos);
  CHECK(text.find("  scrub     a pass every 5 min 0 s, at most 1.0 GiB/s, no full pass yet\n") !=
        std::string::npos);
  receiver.set_seconds_without_sender(90);
  receiver.set_stale(true);
  receiver.set_scrub_pass_seconds_expected(900);
  text = FormatStatus(reply, 100);
  CHECK(text.find("without an accepted sender: stale\n") != std::string::npos);
  CHECK(text.find("at most 1.0 GiB/s, which makes it 15 min 0 s") != std::string::npos);
}

TEST_CASE("a build's commit is shown only if it is known", "[dwsctl]") {
  v1::StatusReply reply;
  v1::BuildStatus& build = *reply.mutable_build();
  build.set_compiler("gcc 12.2.0");
  build.set_configuration("default");
  for (const char* const unknown : {"", "unknown"}) {
    build.set_commit(unknown);
    CHECK(FormatStatus(reply, 80).find("  build     gcc 12.2.0, default, protocol 0.0\n") !=
          std::string::npos);
  }
  build.set_commit("0a1b2c3");
  CHECK(FormatStatus(reply, 80).find("  build     commit 0a1b2c3, gcc 12.2.0") !=
        std::string::npos);
}

TEST_CASE("a receiver that follows a folder is shown without senders and engine ranks",
          "[dwsctl]") {
  v1::StatusReply reply;
  reply.set_daemon("dws-receiver");
  reply.set_reason("for more than 30 s version 000002 is not complete: it lacks a shard");
  reply.mutable_build()->set_commit("unknown");
  reply.mutable_build()->set_compiler("gcc 12.2.0");
  reply.mutable_build()->set_configuration("default");
  v1::ReceiverStatus& receiver = *reply.mutable_receiver();
  receiver.set_receiver_id("engine0");
  receiver.set_committed_version(1);
  receiver.set_newest_version(2);
  receiver.set_stage("idle");
  receiver.set_commits(3);
  receiver.set_last_pause_seconds(1.2);
  receiver.set_seconds_since_version(600);
  receiver.set_stale(true);
  v1::FollowerStatus& follower = *receiver.mutable_follower();
  follower.set_folder("/mnt/weights");
  follower.set_checkpoint("/local/model");
  follower.set_checkpoint_version(1);
  follower.set_engine_url("http://127.0.0.1:30000");
  follower.set_loaded(true);
  follower.set_base_proved_by("folder");
  follower.set_waits_for("version 000002 is not complete");
  follower.set_applied(1);
  follower.set_seconds_failing(31);
  CHECK(
      FormatStatus(reply, 100) ==
      "dws-receiver , job none, up 0 us\n"
      "  state     not ready: for more than 30 s version 000002 is not complete: it lacks a shard\n"
      "  build     gcc 12.2.0, default, protocol 0.0\n"
      "  receiver  engine0\n"
      "  folder    /mnt/weights, newest version 2\n"
      "  local     /local/model, version 1, 1 applied\n"
      "  engine    http://127.0.0.1:30000, version 1 loaded, 3 loads, the last took 1.2 s\n"
      "  base      of the last version: proved by folder\n"
      "  waits     version 000002 is not complete\n"
      "  stage     idle\n"
      "  age       10 min 0 s with this version, not followed for 31.0 s: stale\n");
  follower.set_engine_url("");
  follower.set_unproved(true);
  const std::string text = FormatStatus(reply, 100);
  CHECK(text.find("  engine    none is controlled\n") != std::string::npos);
  CHECK(text.find("  base      the next version's is not proved\n") != std::string::npos);
  follower.set_unproved(false);
  follower.set_base_proved_by("nothing");
  CHECK_THAT(FormatStatus(reply, 100),
             Catch::Contains("  base      of the last version: taken, and proved by nothing\n"));
  follower.clear_base_proved_by();
  CHECK_THAT(FormatStatus(reply, 100), Catch::Contains("  base      needs no proof\n"));
}

TEST_CASE("a daemon of an unknown kind is shown with the common fields", "[dwsctl]") {
  v1::StatusReply reply;
  reply.set_daemon("dws-other");
  reply.set_ready(true);
  CHECK(FormatStatus(reply, 80) == "dws-other , job none, up 0 us\n  state     ready\n");
}

}  // namespace dws::dwsctl
