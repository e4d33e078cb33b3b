// Every maximum of DWS, by name. What comes from outside is compared with it before it is trusted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace dws::limits {

// Layout.
inline constexpr size_t kTensorsMax = 200'000;
inline constexpr size_t kTensorNameBytesMax = 512;
inline constexpr size_t kTensorRankMax = 8;
inline constexpr uint64_t kTensorBytesMax = uint64_t{1} << 42;
inline constexpr size_t kCutsMax = 4095;                // of one dimension
inline constexpr size_t kTensorSlicesMax = 65'536;      // of one tensor, on all ranks
inline constexpr size_t kNumberedSlicesMax = 64 << 20;  // of tensors with slices of odd sizes
inline constexpr size_t kMappedSlicesMax = 4 << 20;     // of one engine rank
inline constexpr size_t kSlicesMax = 400'000;           // of one rank
inline constexpr uint32_t kWorldSizeMax = 4096;

// Delta objects.
inline constexpr uint32_t kBlockElements = 65'536;
inline constexpr uint64_t kFrameBytesMax = uint64_t{1} << 20;
inline constexpr uint64_t kManifestBytesMax = uint64_t{256} << 20;
inline constexpr uint64_t kObjectBytesMax = uint64_t{1} << 42;

// Files of other programs.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the official library's limit
inline constexpr uint64_t kCheckpointIndexBytesMax = uint64_t{128} << 20;
inline constexpr size_t kCheckpointFilesMax = 16'384;
inline constexpr size_t kJsonDepthMax = 6;
inline constexpr size_t kJsonValuesMax = 16 * kTensorsMax;
inline constexpr uint64_t kSlimeVersionMax = 999'999'999;
inline constexpr uint64_t kSlimeShardBytesDefault = uint64_t{1} << 30;
inline constexpr uint64_t kSlimePublishShardBytes = uint64_t{256} << 20;  // in memory until written
inline constexpr uint64_t kSlimeWholeBytesMax = uint64_t{4} << 30;  // written at once, or a tensor
inline constexpr uint64_t kSlimeOwnerBytesMax = 256;  // of the file that names a folder's owner
inline constexpr uint64_t kSyncStateBytesMax = uint64_t{1} << 20;
inline constexpr size_t kSlimeAppliedMax = 4096;        // versions a local checkpoint remembers
inline constexpr size_t kSlimeAdoptedVersionsMax = 64;  // read to check one that remembers none
inline constexpr size_t kTensorsNamedMax = 5;           // in a message

// Messages.
inline constexpr uint64_t kFetchChunkBytesMax = uint64_t{1} << 20;
inline constexpr int kGrpcMessageBytesMax = 64 << 20;  // layouts and descriptions of many slices
inline constexpr size_t kIdBytesMax = 256;             // of job ids, receiver ids and client names
inline constexpr size_t kErrorBytesMax = 4096;         // of a NACK's or an RPC's message

// Registrations.
inline constexpr size_t kRegionsMax = 16'384;
inline constexpr size_t kCudaChunksMax = 65'536;       // of all regions of one registration
inline constexpr size_t kDescriptorsPerMessage = 200;  // SCM_MAX_FD is 253
inline constexpr size_t kDescriptorsMax = kRegionsMax + kCudaChunksMax;  // of one registration
inline constexpr uint64_t kRegionBytesMax = uint64_t{1} << 42;
inline constexpr size_t kViewsMax = 400'000;
inline constexpr uint32_t kBucketsMax = 64;
inline constexpr size_t kPutPiecesMax = 65'536;
inline constexpr size_t kHandleConnectionsMax = 64;
inline constexpr size_t kHandleExpectationsMax = 1024;          // tokens issued and not yet used
inline constexpr size_t kHandleExpectationsPerProcessMax = 64;  // the share of one client process

// Listeners.
inline constexpr size_t kLocalConnectionsMax = 256;  // to one unix socket
inline constexpr int kGrpcStreamsMax = 1024;         // calls at a time on one connection
inline constexpr uint64_t kTlsFileBytesMax = uint64_t{1} << 20;
inline constexpr size_t kPeerIdentitiesMax = 64;  // of one certificate; the rest is ignored

// Sender.
inline constexpr size_t kReceiversMax = 4096;
inline constexpr size_t kWaitReceiversNamedMax = 16;  // in the answer of a Wait, of each kind
inline constexpr size_t kWaitDetailsBytesMax = 2048;  // of the details of a Wait's error
inline constexpr std::chrono::seconds kLaggardAfterDefault{300};
inline constexpr std::chrono::seconds kLaggardAfterMax{24 * 3600};
inline constexpr size_t kRetainedVersionsMax = 1024;
inline constexpr size_t kSealBacklogMax = 2;     // captured versions that wait to be sealed
inline constexpr size_t kFullTransfersMax = 64;  // FetchFull streams at a time
inline constexpr size_t kComposedCacheMax = 8;   // squashed objects kept for other receivers
// A snapshot on a GPU must leave so many bytes to the trainer; otherwise it is on the host.
inline constexpr uint64_t kGpuSpareBytes = uint64_t{8} << 30;
inline constexpr uint64_t kWanAskedVersions = 16;  // class-split so many versions after a request
inline constexpr size_t kDenseGroupsShown = 8;     // of a version, in its status and the log

// Receiver.
inline constexpr uint64_t kWanBytesPerSecond = uint64_t{32} << 20;   // on slower links ask for wan
inline constexpr uint64_t kLinkSampleBytesMin = uint64_t{64} << 10;  // less measures only latency
inline constexpr size_t kSendersMax = 4096;
inline constexpr uint64_t kStagingBytesMin = uint64_t{1} << 20;
inline constexpr uint64_t kStagingBytesDefault = uint64_t{256} << 20;
inline constexpr uint32_t kEngineWorldSizeMax = 1024;
inline constexpr size_t kPendingAttachesMax = 64;
inline constexpr size_t kSyncQueueMax = 256;  // acknowledgements that wait for one sender
inline constexpr size_t kLeaseQueueMax = 16;  // commands that wait to be written to one engine rank
inline constexpr int kFetchAttemptsMax = 5;   // in a row without progress
inline constexpr uint64_t kFetchBytesPerSecondMin = 1 << 20;  // extends a transfer's deadline
inline constexpr uint64_t kInlineObjectBytesMax = 65'536;     // sent inside its announcement
inline constexpr uint64_t kEarlyDeltaBytesMin = 4 * kInlineObjectBytesMax;  // worth an early fetch

// Broadcasts.
inline constexpr uint32_t kBroadcastMembersMax = 1024;  // of one epoch, the sender included
inline constexpr size_t kBroadcastLinksMax = 16;        // epochs that one receiver joins
inline constexpr size_t kBroadcastQueueMax = 16;  // messages about broadcasts that wait, of a link
inline constexpr uint32_t kBroadcastPieceBytes = uint32_t{8} << 20;
inline constexpr uint64_t kBroadcastObjectBytesMax = uint64_t{4} << 30;
inline constexpr size_t kBroadcastsKeptMax = 2;  // objects expected or received, not yet taken
inline constexpr uint64_t kBroadcastBytesPerSecondMin = 64 << 20;  // extends its deadline
inline constexpr std::chrono::seconds kBroadcastTimeoutDefault{5};
inline constexpr std::chrono::seconds kBroadcastTimeoutMax{120};
inline constexpr std::chrono::milliseconds kBroadcastLeaveGrace{1000};
inline constexpr std::chrono::seconds kBroadcastRebuildInterval{5};  // to let new receivers in
inline constexpr std::chrono::milliseconds kBroadcastQuiet{500};     // idle time before a rebuild
inline constexpr std::chrono::milliseconds kBroadcastBackoffMin{500};
inline constexpr std::chrono::seconds kBroadcastBackoffMax{60};
inline constexpr std::chrono::seconds kBroadcastExclusion{60};  // if it cannot take part

// Publishers other than the pipeline.
inline constexpr std::chrono::milliseconds kOfferPoll{500};
inline constexpr std::chrono::milliseconds kOfferRetryDelayMin{200};
inline constexpr std::chrono::seconds kOfferRetryDelayMax{10};

// A shared directory.
inline constexpr uint64_t kSharedManifestBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kSharedReportBytesMax = uint64_t{1} << 20;
inline constexpr size_t kSharedSlicesNamedMax = 10'000;               // of a rejection, in a report
inline constexpr uint32_t kSharedPieceBytes = uint32_t{1} << 20;      // hashed and checked at once
inline constexpr uint32_t kSharedFullPieceBytes = uint32_t{8} << 20;  // of full tensors
inline constexpr uint32_t kSharedPieceBytesMax = uint32_t{256} << 20;  // that a reader accepts
inline constexpr size_t kSharedKeyBytesMin = 16;
inline constexpr size_t kSharedKeyBytesMax = 4096;
inline constexpr size_t kSharedChainMax = kRetainedVersionsMax;  // deltas after an anchor
inline constexpr size_t kSharedFoldersMax = 65'536;              // names in one folder
inline constexpr int kSharedReadAttemptsMax = 5;  // of a file that may be invisible yet, or torn
inline constexpr size_t kSharedHookOutputBytesMax = 65'536;  // of a command, that is kept
inline constexpr std::chrono::milliseconds kSharedPollDefault{500};
inline constexpr std::chrono::milliseconds kSharedPollMin{10};
inline constexpr std::chrono::seconds kSharedPollMax{3600};
inline constexpr std::chrono::seconds kSharedReportInterval{2};
inline constexpr std::chrono::seconds kSharedPresenceTimeout{20};  // after a report's last change
inline constexpr std::chrono::seconds kSharedHookDeadline{60};
inline constexpr std::chrono::seconds kSharedVisibleWait{5};  // for an announced version to appear
inline constexpr std::chrono::milliseconds kSharedRetryDelayMin{200};

// Commit groups.
inline constexpr size_t kGroupSlicesMax = 8'000'000;  // of all tensors: a bit each in a GroupShare
inline constexpr uint32_t kGroupMembersMax = 64;
inline constexpr size_t kGroupQueueMax = 64;  // messages that wait to be written to one member
inline constexpr size_t kEvictReasonBytesMax = 500;
inline constexpr std::chrono::seconds kGroupOfferWait{5};  // for senders to offer a round's version

// Engines over HTTP.
inline constexpr size_t kEngineReplyBytesMax = size_t{16} << 20;  // checksums of all tensors
inline constexpr size_t kEngineTokenBytesMax = 4096;
inline constexpr size_t kEngineQuoteBytesMax = 300;             // of a reply, in a message
inline constexpr int kEngineAttemptsMax = 4;                    // of one call
inline constexpr std::chrono::seconds kEngineCallDeadline{10};  // of a call that moves no weights
inline constexpr std::chrono::milliseconds kEngineRetryDelayMax{1000};

// HTTP and metrics.
inline constexpr size_t kHttpHeadBytesMax = 8192;  // request line and headers
inline constexpr size_t kHttpBodyBytesMax = 4096;  // read and ignored: no page uses a body
inline constexpr size_t kHttpConnectionsMax = 64;
inline constexpr size_t kMetricSeriesMax = 1024;  // of one metric that is read at scrape time

// Operators.
inline constexpr size_t kWatchersMax = 64;        // Watch streams at a time
inline constexpr size_t kAdminStreamsMax = 32;    // of operations' progress, including ending ones
inline constexpr size_t kAdminOperationsMax = 4;  // of one kind that run at a time
inline constexpr size_t kMismatchesNamedMax = 100;
inline constexpr uint64_t kVerifyBatchBytes = uint64_t{64} << 20;  // read between two steps
inline constexpr std::chrono::seconds kStalledReaderTimeout{30};
inline constexpr std::chrono::milliseconds kProgressInterval{200};
inline constexpr std::chrono::milliseconds kWatchIntervalMin{100};
inline constexpr std::chrono::milliseconds kWatchIntervalDefault{1000};
inline constexpr std::chrono::seconds kWatchIntervalMax{3600};

// Configuration, and the ledger.
inline constexpr uint64_t kConfigBytesMax = uint64_t{1} << 20;
inline constexpr size_t kConfigMistakesMax = 100;  // lines that are not TOML, then reading stops
inline constexpr uint64_t kLedgerRecordBytesMax = 4096;
inline constexpr uint64_t kLedgerBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kLedgerCompactBytes = uint64_t{1} << 20;

// Time.
inline constexpr std::chrono::seconds kKeepaliveInterval{2};
inline constexpr std::chrono::seconds kKeepaliveTimeout{10};
inline constexpr std::chrono::seconds kRpcDeadline{30};
inline constexpr std::chrono::seconds kSnapshotReadDeadline{10};  // to wait for captures to pause
inline constexpr std::chrono::seconds kPauseDeadline{60};
inline constexpr std::chrono::seconds kHandleTimeout{10};
inline constexpr std::chrono::seconds kShutdownGrace{5};
inline constexpr std::chrono::milliseconds kCallGrace{500};   // for open calls at shutdown
inline constexpr std::chrono::seconds kHttpTimeout{5};        // for a client to send or to read
inline constexpr std::chrono::seconds kHandshakeTimeout{10};  // TLS, HTTP/2 preface and settings
inline constexpr std::chrono::seconds kTlsCheckInterval{2};   // for changed certificates
inline constexpr std::chrono::seconds kAttachDeadlineMax{600};
inline constexpr std::chrono::milliseconds kTick{50};  // timers of connections and deadlines
inline constexpr std::chrono::milliseconds kReconnectDelayMin{50};
inline constexpr std::chrono::milliseconds kReconnectDelayMax{2000};

}  // namespace dws::limits
