// The metrics that a status shows by the options of its fields.
#include "common/service/metrics/status_metrics.h"

#include <google/protobuf/descriptor.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "proto/admin.pb.h"
#include "proto/metric.pb.h"

namespace dws {
namespace {

using google::protobuf::Descriptor;

std::string Page(const v1::StatusReply& status) {
  Metrics metrics({});
  metrics.OnCollect([&](Scrape& scrape) { WriteStatusMetrics(status, scrape); });
  return metrics.Text();
}

bool Shows(const v1::StatusReply& status, const std::string& line) {
  INFO(Page(status));
  return ("\n" + Page(status)).find("\n" + line) != std::string::npos;
}

TEST_CASE("a field's metric has its value, its help text and the type that its name says",
          "[metrics]") {
  v1::StatusReply status;
  v1::ReceiverStatus& receiver = *status.mutable_receiver();
  receiver.set_committed_version(7);
  receiver.set_commits(3);
  receiver.set_held_seconds(1.5);
  receiver.set_engine_paused(true);
  CHECK(Shows(status,
              "# HELP dws_receiver_commits_total Versions committed.\n"
              "# TYPE dws_receiver_commits_total counter\n"
              "dws_receiver_commits_total 3\n"));
  CHECK(Shows(status, "# TYPE dws_receiver_committed_version gauge\n"));
  CHECK(Shows(status, "dws_receiver_committed_version 7\n"));
  CHECK(Shows(status, "dws_receiver_held_seconds 1.5\n"));
  CHECK(Shows(status, "dws_receiver_engine_paused 1\n"));
  CHECK(Shows(status, "dws_receiver_repairs_total 0\n"));
}

TEST_CASE("the metric of a text or an enumeration is 1 while it is set", "[metrics]") {
  v1::StatusReply status;
  status.mutable_sender();
  CHECK(Shows(status, "dws_draining 0\n"));
  CHECK(Shows(status, "dws_sender_slime_failing 0\n"));
  status.set_drain(v1::DRAIN_STATE_DRAINED);
  status.mutable_sender()->mutable_slime()->set_failing("the disk is full");
  CHECK(Shows(status, "dws_draining 1\n"));
  CHECK(Shows(status, "dws_sender_slime_failing 1\n"));
}

TEST_CASE("what is unset has no metric, or is shown as zeros if it always is", "[metrics]") {
  v1::StatusReply status;
  CHECK_FALSE(Shows(status, "dws_sender"));
  CHECK_FALSE(Shows(status, "dws_receiver"));
  CHECK(Shows(status, "dws_insecure_channels 0\n"));
  status.mutable_tls();
  CHECK_FALSE(Shows(status, "dws_tls_certificate_expiry_timestamp_seconds"));
  status.mutable_tls()->set_expires_unix_seconds(2'000'000'000);
  CHECK(Shows(status, "dws_tls_certificate_expiry_timestamp_seconds 2000000000\n"));
  v1::SenderStatus& sender = *status.mutable_sender();
  CHECK_FALSE(Shows(status, "dws_sender_dense_groups"));
  CHECK(Shows(status, "dws_sender_broadcasts_total{outcome=\"sent\"} 0\n"));
  CHECK(Shows(status, "dws_sender_views 0\n"));
  CHECK(Shows(status, "dws_sender_view_retained_bytes 0\n"));
  sender.mutable_density();
  CHECK(Shows(status, "dws_sender_dense_groups 0\n"));
}

TEST_CASE("messages without a label are counted and added up", "[metrics]") {
  v1::StatusReply status;
  status.add_insecure("--listen 0.0.0.0:7700");
  for (const uint64_t bytes : {100, 20}) {
    v1::ViewStatus& view = *status.mutable_sender()->add_views();
    view.set_name("fp8");
    view.set_retained_bytes(bytes);
  }
  CHECK(Shows(status, "dws_insecure_channels 1\n"));
  CHECK(Shows(status, "dws_sender_views 2\n"));
  CHECK(Shows(status, "dws_sender_view_retained_bytes 120\n"));
  v1::GroupStatus& group = *status.mutable_receiver()->mutable_group();
  CHECK_FALSE(Shows(status, "dws_receiver_group_members"));
  group.add_members()->set_connected(true);
  group.add_members();
  CHECK(Shows(status, "dws_receiver_group_members{state=\"configured\"} 2\n"));
  CHECK(Shows(status, "dws_receiver_group_members{state=\"connected\"} 1\n"));
}

TEST_CASE("messages with labels and entries of a map have a sample each", "[metrics]") {
  v1::StatusReply status;
  for (const char* const id : {"a", "b"}) {
    v1::ReceiverPeer& peer = *status.mutable_sender()->add_receivers();
    peer.set_receiver_id(id);
    peer.set_committed_version(std::string(id) == "a" ? 4 : 5);
  }
  CHECK(Shows(status,
              "dws_sender_receiver_committed_version{receiver_id=\"a\"} 4\n"
              "dws_sender_receiver_committed_version{receiver_id=\"b\"} 5\n"));
  v1::SourceBytes& source = *status.mutable_receiver()->add_sources();
  source.set_content("full");
  source.set_source("grpc");
  source.set_size_bytes(9);
  (*status.mutable_receiver()->mutable_nacks_by_reason())["unknown"] = 2;
  (*status.mutable_receiver()->mutable_nacks_by_reason())["data_loss"] = 1;
  CHECK(Shows(status, "dws_receiver_source_bytes_total{content=\"full\",source=\"grpc\"} 9\n"));
  CHECK(Shows(status,
              "dws_receiver_nacks_total{reason=\"data_loss\"} 1\n"
              "dws_receiver_nacks_total{reason=\"unknown\"} 2\n"));
}

TEST_CASE("a receiver that follows a folder shows no metrics of senders", "[metrics]") {
  v1::StatusReply status;
  status.mutable_receiver()->set_committed_version(3);
  CHECK(Shows(status, "dws_receiver_"));
  status.mutable_receiver()->mutable_follower()->set_loaded_version(3);
  CHECK_FALSE(Shows(status, "dws_receiver_"));
  CHECK(Shows(status, "dws_follower_loaded_version 3\n"));
  CHECK(Shows(status, "dws_ready 0\n"));
}

// Collects the names of metrics, and the metrics that have a help text, of each type once.
void Collect(const Descriptor& type, std::set<const Descriptor*>& seen,
             std::set<std::string>& names, std::multiset<std::string>& helped) {
  if (!seen.insert(&type).second) return;
  for (int i = 0; i < type.field_count(); ++i) {
    const auto& field = *type.field(i);
    const std::string metric = field.options().GetExtension(v1::metric);
    const std::string name = metric.substr(0, metric.find('{'));
    if (!name.empty()) names.insert(name);
    if (!field.options().GetExtension(v1::help).empty()) helped.insert(name);
    if (field.message_type() != nullptr) Collect(*field.message_type(), seen, names, helped);
  }
}

TEST_CASE("each metric of the status has one help text", "[metrics]") {
  std::set<const Descriptor*> seen;
  std::set<std::string> names;
  std::multiset<std::string> helped;
  Collect(*v1::StatusReply::descriptor(), seen, names, helped);
  CHECK(names.size() > 70);
  CHECK(helped == std::multiset<std::string>(names.begin(), names.end()));
}

}  // namespace
}  // namespace dws
