// A test compares these lists with the daemons' --help.
#include "tools/dwsctl/report/options.h"

#include <algorithm>
#include <array>

namespace dws::dwsctl {
namespace {

// Words, with blanks between them. Commands (--shared-after-write and its like) are not among them:
// their words may be secrets.
constexpr std::string_view kShown =
    "allow-user check-config checkpoint commit-policy config early-deltas egress-limit "
    "engine-ca engine-checkpoint engine-insecure engine-kind engine-load-timeout "
    "engine-pause-mode engine-token-file engine-url fabric folder-stale-after full-way "
    "gpu gpu-duty group-id group-index group-leader group-members host-accumulate-bytes "
    "host-cache-bytes host-id host-share host-share-bytes http huge-pages insecure "
    "job-id laggard-after listen log-format log-level nccl nccl-timeout object-bytes "
    "owner-pid peer-address ports-file profile quarantine-damaged-ledger receiver-id retain-bytes "
    "retain-versions scrub-pass scrub-rate sender serve-peers serve-peers-rate "
    "shared-after-write-required shared-before-read-required shared-ca "
    "shared-credentials shared-dir shared-dir-anchor-every shared-dir-first "
    "shared-dir-key shared-dir-profile shared-endpoint shared-poll-ms shared-ranks "
    "shared-region shared-view slime-after-write-required slime-before-read-required "
    "slime-checkpoint slime-checksum slime-dir slime-encoding slime-first slime-keep "
    "slime-poll-ms slime-proof slime-view socket staging-bytes stale-after stale-keeps-ready "
    "stall-timeout state-dir stop-timeout threads tls-ca tls-cert tls-key "
    "tls-server-name train-peer-timeout train-peers trainer-rank view";

constexpr auto kSecretFiles = std::to_array<std::string_view>(
    {"engine-token-file", "shared-credentials", "shared-dir-key", "tls-key"});

}  // namespace

bool IsShownOption(std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return false;
  for (size_t at = kShown.find(name); at != std::string_view::npos;
       at = kShown.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || kShown[at - 1] == ' ') && (end == kShown.size() || kShown[end] == ' '))
      return true;
  }
  return false;
}

std::span<const std::string_view> SecretFileOptions() { return kSecretFiles; }

}  // namespace dws::dwsctl
