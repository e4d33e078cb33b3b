// The pages that a daemon's HttpEndpoint serves.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/service/lifecycle.h"
#include "common/service/metrics/metrics.h"

namespace dws::v1 {
class StatusReply;
}  // namespace dws::v1

namespace dws {

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string security_policy = {};  // the header Content-Security-Policy; empty: it has none
};

// A path and the page that is served there.
struct HttpPage {
  std::string path;                   // "/healthz"
  std::function<HttpReply()> render;  // called on the endpoint's threads, several at a time
};

// /healthz: 200 "ok" as long as the process answers. /readyz: 200 "ready", or 503 with the reason.
// `lifecycle` must outlive the pages.
std::vector<HttpPage> HealthPages(const Lifecycle& lifecycle);

// /status: the reply of AdminService.Status in protobuf's JSON mapping, with the field names of
// proto/admin.proto, fields at their default included.
HttpPage StatusPage(std::function<void(v1::StatusReply&)> fill);

// /metrics. `metrics` outlives the page.
HttpPage MetricsPage(const Metrics& metrics);

// /: a page for people, made of common/service/http/page, that shows what /status has.
HttpPage FrontPage();

// All of the above, as both daemons serve them.
std::vector<HttpPage> DaemonPages(const Lifecycle& lifecycle, const Metrics& metrics,
                                  std::function<void(v1::StatusReply&)> fill);

}  // namespace dws
