// dws-receiver: runs beside one rollout engine. With --slime-dir it follows a folder of versions
// instead of senders: another app, without GPU kernels, because nothing is written to GPU memory.
#include <memory>
#include <utility>

#include "common/memory/cuda/kernel_image.h"
#include "common/service/program/daemon_program.h"
#include "common/service/program/daemon_status_line.h"
#include "receiver_daemon/app/receiver_app.h"
#include "receiver_daemon/follower/follower_app.h"
#include "receiver_daemon/options/receiver_flags.h"

namespace dws {
namespace {

Result<RunningDaemon> StartFollower(const ReceiverOptions& options) {
  DWS_ASSIGN_OR_RETURN(std::shared_ptr<FollowerApp> app, FollowerApp::Start(options));
  return RunningDaemon{.stop = [app](std::chrono::milliseconds grace) { app->Stop(grace); },
                       .end_grace = [app] { app->EndGrace(); },
                       .status_line = [app] { return StatusLine(app->status()); },
                       .broken = [] { return OkStatus(); },
                       .reload_credentials = [app] { return app->ReloadCredentials(); },
                       .vital = app->VitalWork(),
                       .tick = [app] { app->ShowReadiness(); }};
}

DaemonProgram MakeReceiver() {
  const auto options = std::make_shared<ReceiverOptions>();
  return {.name = "dws-receiver",
          .description = "Keeps the weights of a rollout engine equal to the trainer's.",
          .declare = [options](CLI::App& app) { AddReceiverFlags(app, *options); },
          .finish = [options](Config& config) { FinishReceiverFlags(config, *options); },
          .start = [options]() -> Result<RunningDaemon> {
            if (!options->follow.slime_dir.empty()) return StartFollower(*options);
            options->gpu_kernels = cuda::KernelImage();
            DWS_ASSIGN_OR_RETURN(std::shared_ptr<ReceiverApp> app, ReceiverApp::Start(*options));
            return RunningDaemon{
                .stop = [app](std::chrono::milliseconds grace) { app->Stop(grace); },
                .end_grace = [app] { app->EndGrace(); },
                .status_line = [app] { return StatusLine(app->status()); },
                .broken = [app] { return app->broken(); },
                .reload_credentials = [app] { return app->ReloadCredentials(); },
                .vital = app->VitalWork(),
                .tick = [app] { app->ShowReadiness(); }};
          }};
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) { return dws::RunProgram(dws::MakeReceiver, argc, argv); }
