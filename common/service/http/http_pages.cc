#include "common/service/http/http_pages.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "common/service/http/front_page.h"
#include "proto/admin.pb.h"

namespace dws {

std::vector<HttpPage> HealthPages(const Lifecycle& lifecycle) {
  return {
      {.path = "/healthz", .render = [] { return HttpReply{.body = "ok\n"}; }},
      {.path = "/readyz",
       .render =
           [&lifecycle] {
             const Lifecycle::State state = lifecycle.state();
             if (state.ready) return HttpReply{.body = "ready\n"};
             return HttpReply{.code = 503, .body = state.reason + "\n"};
           }},
  };
}

HttpPage StatusPage(std::function<void(v1::StatusReply&)> fill) {
  return {.path = "/status", .render = [fill = std::move(fill)] {
            v1::StatusReply reply;
            fill(reply);
            google::protobuf::util::JsonPrintOptions options;
            // Print zeros and false too, so that a script need not know the defaults.
            options.always_print_primitive_fields = true;
            options.preserve_proto_field_names = true;
            HttpReply page{.content_type = "application/json"};
            const auto written =
                google::protobuf::util::MessageToJsonString(reply, &page.body, options);
            if (!written.ok()) {
              return HttpReply{.code = 500, .body = "the status has no JSON form\n"};
            }
            page.body += "\n";
            return page;
          }};
}

HttpPage MetricsPage(const Metrics& metrics) {
  return {.path = "/metrics", .render = [&metrics] {
            return HttpReply{.content_type = std::string(Metrics::kContentType),
                             .body = metrics.Text()};
          }};
}

HttpPage FrontPage() {
  return {.path = "/", .render = [] {
            return HttpReply{.content_type = "text/html; charset=utf-8",
                             .body = std::string(kFrontPage),
                             .security_policy = std::string(kFrontPagePolicy)};
          }};
}

std::vector<HttpPage> DaemonPages(const Lifecycle& lifecycle, const Metrics& metrics,
                                  std::function<void(v1::StatusReply&)> fill) {
  std::vector<HttpPage> pages = HealthPages(lifecycle);
  pages.push_back(StatusPage(std::move(fill)));
  pages.push_back(MetricsPage(metrics));
  pages.push_back(FrontPage());
  return pages;
}

}  // namespace dws
