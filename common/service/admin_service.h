// What an operator asks a daemon: AdminService over a function that fills the reply.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/service/build_version.h"
#include "proto/admin.grpc.pb.h"

namespace dws {

// `fill` makes the whole reply; it must not block.
class AdminServiceImpl final : public v1::AdminService::CallbackService {
 public:
  using Fill = std::function<void(v1::StatusReply&)>;
  explicit AdminServiceImpl(Fill fill) : fill_(std::move(fill)) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reply->set_build_version(std::string(kBuildVersion));
    fill_(*reply);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const Fill fill_;
};

}  // namespace dws
