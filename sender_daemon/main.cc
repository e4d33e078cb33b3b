// dws-sender: runs beside one trainer rank.
#include <memory>
#include <utility>

#include "common/memory/cuda/kernel_image.h"
#include "common/service/program/daemon_program.h"
#include "common/service/program/daemon_status_line.h"
#include "sender_daemon/app/sender_flags.h"

namespace dws {
namespace {

DaemonProgram MakeSender() {
  const auto options = std::make_shared<SenderOptions>();
  return {.name = "dws-sender",
          .description = "Publishes the weights of one trainer rank as versioned deltas.",
          .declare = [options](CLI::App& app) { AddSenderFlags(app, *options); },
          .finish = [options](Config& config) { FinishSenderFlags(config, *options); },
          .start = [options]() -> Result<RunningDaemon> {
            options->gpu_kernels = cuda::KernelImage();
            DWS_ASSIGN_OR_RETURN(std::shared_ptr<SenderApp> app, SenderApp::Start(*options));
            return RunningDaemon{
                .stop = [app](std::chrono::milliseconds grace) { app->Stop(grace); },
                .end_grace = [app] { app->EndGrace(); },
                .status_line = [app] { return StatusLine(app->status()); },
                .broken = [app] { return app->broken(); },
                .reload_credentials = [app] { return app->ReloadCredentials(); },
                .vital = app->VitalWork()};
          }};
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) { return dws::RunProgram(dws::MakeSender, argc, argv); }
