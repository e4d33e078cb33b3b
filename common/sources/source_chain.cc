// Deltas are proved where they are staged, full tensors here: a source that is passed over may have
// brought a part of them. Slices that are complete are compared with their digests after each
// source; a slice that several sources have filled is compared when the last of them has.
#include "common/sources/source_chain.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/delta/objects/object.h"
#include "common/sources/memory_reader.h"
#include "common/spool/fetched_object.h"

namespace dws {
namespace {

// How often the chain looks whether the capture of a version has ended: each time after twice as
// long.
constexpr Duration kCapturePollMin = std::chrono::milliseconds(1);
constexpr Duration kCapturePollMax = std::chrono::milliseconds(64);

// OK, or which slices had to be dropped.
Status DropWrong(FullAssembly& assembly) {
  const std::vector<RankSlice> wrong = assembly.DropWrong();
  if (wrong.empty()) return OkStatus();
  return DataLossError("{} slices are not as published, the first is of '{}'", wrong.size(),
                       assembly.layout().tensor(wrong[0]).name);
}

// A sender's name for messages; empty: the chain was not told.
std::string_view NameOf(const std::vector<std::string>& senders, SenderIndex sender) {
  return sender.value() < senders.size() ? std::string_view(senders[sender.value()]) : "";
}

}  // namespace

struct SourceChain::Transfer {
  const Piece& piece;
  const Content content;
  uint64_t wanted_bytes = 0;                     // of full tensors
  std::map<const Source*, uint64_t> bytes = {};  // that came
  std::string reason = {};                       // why not from the sources before
  bool memory_read = false;                      // as it is: what is missing there has changed
  Status turned = OkStatus();                    // why that cannot be turned back
  Spool::Options spool = {};                     // of the deltas that turn it back

  SenderIndex sender() const { return piece.of().sender; }
  void Came(const Source& source, uint64_t missing_before, uint64_t missing) {
    // Nothing came if slices were dropped of which other sources had brought a part.
    if (missing < missing_before) bytes[&source] += missing_before - missing;
  }
  void Passed(const Source& source, std::string_view why) {
    const std::string passed = fmt::format("{}: {}", source.name(), why);
    if (reason.find(passed) != std::string::npos) return;  // it was tried while the capture ran
    if (!reason.empty()) reason += "; ";
    reason += passed;
  }
};

SourceChain::SourceChain(std::vector<Source*> sources, Options options)
    : sources_(std::move(sources)), options_(std::move(options)) {
  for (const Source* const source : sources_) DWS_CHECK(source != nullptr);
}

bool SourceChain::Sleep(Duration time) {
  if (options_.cancellation != nullptr) return options_.cancellation->Sleep(time);
  Cancellation never;
  return never.Sleep(time);
}

bool SourceChain::MayRead(Content content, const Source& source) const {
  if (!source.brings(content)) return false;
  return content == Content::kDelta || !options_.only_full.has_value() ||
         source.name() == *options_.only_full;
}

std::vector<Source*> SourceChain::Candidates(Content content) const {
  std::vector<Source*> found;
  for (Source* const source : sources_) {
    if (MayRead(content, *source)) found.push_back(source);
  }
  return found;
}

void SourceChain::PassedOver(const Source& source, Transfer& transfer, const Status& why) {
  transfer.Passed(source, Message(why));
  {
    MutexLock lock(mutex_);
    const auto [found, first] =
        failing_.try_emplace({&source, transfer.content, transfer.sender()}, why.code());
    if (!first && std::exchange(found->second, why.code()) == why.code()) return;
  }
  // That a sender is on another host, or that its trainer goes on, is no fault.
  const bool expected =
      absl::IsFailedPrecondition(why) || (source.reads_memory() && !absl::IsDataLoss(why));
  LogEvent(expected ? LogLevel::kInfo : LogLevel::kWarning, "source_passed_over",
           {{"version", transfer.piece.target.version.value()},
            {"rank", transfer.piece.rank.value()},
            {"content", ToString(transfer.content)},
            {"source", source.name()},
            {"reason", Message(why)}});
}

void SourceChain::Succeeded(const Source& source, const Transfer& transfer) {
  MutexLock lock(mutex_);
  failing_.erase({&source, transfer.content, transfer.sender()});
}

Result<FetchedDelta> SourceChain::Delta(const Piece& piece, const DeltaWant& want,
                                        const Spool::Options& spool, DeltaTaker& taker) {
  if (piece.of().in_the_making()) return DeltaInTheMaking(piece, want, spool, taker);
  DWS_ASSIGN_OR_RETURN(Spool object, Object(piece, want, spool));
  DWS_ASSIGN_OR_RETURN(FetchedObject parsed, ParseObject(object, *piece.of().layout, want.slices));
  DWS_RETURN_IF_ERROR(taker.Take(parsed.frames, object));
  return FetchedDelta{.manifest = std::move(parsed.manifest),
                      .bytes = object.size_bytes(),
                      .object = std::move(object),
                      .frames = std::move(parsed.frames)};
}

Result<FetchedDelta> SourceChain::DeltaInTheMaking(const Piece& piece, const DeltaWant& want,
                                                   const Spool::Options& spool, DeltaTaker& taker) {
  Source* const source = CaptureReader(Content::kDelta, piece);
  if (source == nullptr) return AbortedError("deltas are read when they are published");
  FetchedDelta delta;
  auto wait = std::make_unique<WaitScope>(options_.liveness);
  const auto take = [&](std::span<const SpooledFrame> frames, const Spool& arrived) {
    wait.reset();  // that is work
    delta.bytes += arrived.size_bytes();
    const Status status = taker.Take(frames, arrived);
    wait = std::make_unique<WaitScope>(options_.liveness);
    return status;
  };
  const auto head = source->ReadDeltaCapture(piece, want, spool, take);
  wait.reset();
  if (head.ok()) delta.bytes += head->size();
  const Transfer transfer{
      .piece = piece, .content = Content::kDelta, .bytes = {{source, delta.bytes}}};
  if (delta.bytes > 0) Note(transfer);
  if (head.ok()) {
    DWS_ASSIGN_OR_RETURN(delta.manifest, ParseObjectManifest(*head, *piece.of().layout));
  } else if (absl::IsUnavailable(head.status())) {  // the link was lost, not what it had brought
    DWS_RETURN_IF_ERROR(ReadRest(piece, want, spool, taker, delta));
  } else {
    return head.status();
  }
  return delta;
}

Status SourceChain::ReadRest(const Piece& piece, const DeltaWant& want, const Spool::Options& spool,
                             DeltaTaker& taker, FetchedDelta& delta) {
  const auto part = [&](const SliceSelection& slices, uint64_t skip_bytes) -> Result<Spool> {
    DWS_ASSIGN_OR_RETURN(
        Spool object,
        Object(piece, {.base = want.base, .slices = slices, .skip_bytes = skip_bytes}, spool));
    delta.bytes += object.size_bytes() - skip_bytes;
    return object;
  };
  const SliceSelection none = std::vector<RankSlice>();
  DWS_ASSIGN_OR_RETURN(const Spool start, part(none, 0));
  DWS_ASSIGN_OR_RETURN(FetchedObject object, ParseObject(start, *piece.of().layout, none));
  delta.manifest = std::move(object.manifest);
  SliceSelection lacking = std::vector<RankSlice>();
  for (const SliceDelta& slice : delta.manifest.slices) {
    const bool here = std::ranges::all_of(
        slice.frames, [&](const FrameEntry& entry) { return taker.Has(slice.slice, entry); });
    if (!here && Selects(want.slices, slice.slice)) lacking->push_back(slice.slice);
  }
  if (lacking->empty()) return OkStatus();
  // The part repeats the start, and perhaps frames that have already arrived.
  std::vector<SpooledFrame> frames = PartFrames(delta.manifest, lacking, object.frames_begin);
  const uint64_t end = frames.back().spool_offset + frames.back().entry.size_bytes;
  std::erase_if(frames,
                [&](const SpooledFrame& frame) { return taker.Has(frame.slice, frame.entry); });
  DWS_ASSIGN_OR_RETURN(const Spool rest, part(lacking, frames.front().spool_offset));
  if (rest.size_bytes() != end) {
    return DataLossError("a part of a delta object has {} bytes, expected {}", rest.size_bytes(),
                         end);
  }
  return taker.Take(frames, rest);
}

Result<Spool> SourceChain::Object(const Piece& piece, const DeltaWant& want,
                                  const Spool::Options& spool) {
  auto wait = std::make_unique<WaitScope>(options_.liveness);
  Transfer transfer{.piece = piece, .content = Content::kDelta};
  std::vector<std::function<void(const Spool&)>> keepers;
  Status last = AbortedError("no source has deltas");
  const std::vector<Source*> candidates = Candidates(Content::kDelta);
  for (Source* const source : candidates) {
    if (cancelled()) return CancelledError("the receiver is shutting down");
    // What is kept for others is not made of this engine's weights.
    DeltaWant asked = want;
    if (!keepers.empty()) asked.old = nullptr;
    Result<DeltaRead> read = source->ReadDelta(piece, asked, spool);
    if (read.ok() && read->object.has_value() && read->object->size_bytes() < want.skip_bytes) {
      read = DataLossError("an object of {} bytes, expected more than {}",
                           read->object->size_bytes(), want.skip_bytes);
    }
    if (!read.ok()) {
      last = read.status();
      if (absl::IsCancelled(last) || absl::IsResourceExhausted(last)) return last;
      if (source != candidates.back()) PassedOver(*source, transfer, last);
      continue;
    }
    Succeeded(*source, transfer);
    // Without its first bytes it is of no use to others.
    if (read->keep && want.skip_bytes == 0) keepers.push_back(std::move(read->keep));
    if (!read->object.has_value()) {
      last = AbortedError("{}: {}", source->name(), read->why);
      transfer.Passed(*source, read->why);
      continue;
    }
    transfer.bytes[source] = read->object->size_bytes() - want.skip_bytes;
    wait.reset();  // that is work
    for (const auto& keep : keepers) keep(*read->object);
    Note(transfer);
    return *std::move(read->object);
  }
  return last;
}

Status SourceChain::ReadMemory(Source& source, Transfer& transfer, FullAssembly& assembly) {
  const std::vector<Source*> deltas = Candidates(Content::kDelta);
  const auto composer = std::ranges::find_if(deltas, &Source::composes);
  MemoryReader reader({.memory = source,
                       .deltas = composer == deltas.end() ? nullptr : *composer,
                       .piece = transfer.piece,
                       .spool = transfer.spool,
                       .required = options_.only_full.has_value(),
                       .sleep = [this](Duration time) { return Sleep(time); }});
  Status read = reader.Read(assembly);
  transfer.turned = reader.turned();
  if (reader.delta_bytes() > 0) {
    MutexLock lock(mutex_);
    bytes_[{*composer, Content::kDelta}] += reader.delta_bytes();
  }
  return read;
}

Status SourceChain::ReadFull(Source& source, bool last, Transfer& transfer,
                             FullAssembly& assembly) {
  const uint64_t before = MissingBytes(assembly);
  Status read = source.reads_memory() ? ReadMemory(source, transfer, assembly)
                                      : source.ReadFull(transfer.piece, assembly);
  if (absl::IsCancelled(read)) return read;
  const Status right = DropWrong(assembly);
  if (read.ok() && !right.ok() && last && !source.reads_memory()) {
    // What other sources have brought of these slices may be wrong. Now all of it comes from here:
    // what is still wrong then is the sender's, and the caller finds it.
    LogWarning("full_slices_again", {{"source", source.name()}, {"reason", Message(right)}});
    transfer.Passed(source, Message(right));
    read = source.ReadFull(transfer.piece, assembly);
  } else if (read.ok()) {
    read = right;
  }
  transfer.Came(source, before, MissingBytes(assembly));
  if (read.ok()) Succeeded(source, transfer);
  transfer.memory_read = transfer.memory_read || (read.ok() && source.reads_memory());
  if (!read.ok() || assembly.missing_blocks() == 0) return read;
  if (!source.reads_memory()) {
    return UnavailableError("{} blocks are missing: it did not bring them",
                            assembly.missing_blocks());
  }
  return UnavailableError(
      "{} blocks are missing: the trainer has changed them since{}", assembly.missing_blocks(),
      transfer.turned.ok()
          ? ""
          : fmt::format(", and they cannot be turned back: {}", Message(transfer.turned)));
}

Result<FetchedFull> SourceChain::Full(const Piece& piece, const FullWant& want,
                                      Spool::Options spool) {
  const WaitScope wait(options_.liveness);
  Transfer transfer{.piece = piece,
                    .content = Content::kFull,
                    .spool = {.folder = spool.folder,
                              .memory_bytes_max = spool.memory_bytes_max / 8,
                              .size_bytes_max = spool.size_bytes_max,
                              .wanted = spool.wanted}};
  DWS_ASSIGN_OR_RETURN(const auto assembly, FullAssembly::Create(want, std::move(spool)));
  transfer.wanted_bytes = MissingBytes(*assembly);
  if (want.early != nullptr) DWS_RETURN_IF_ERROR(ReadCapture(transfer, *assembly));
  const std::vector<Source*> candidates = Candidates(Content::kFull);
  Status last = AbortedError("no source has full tensors");
  for (Source* const source : candidates) {
    if (assembly->missing_blocks() == 0) break;
    if (cancelled()) return CancelledError("the receiver is shutting down");
    if (source->reads_memory() && transfer.memory_read) continue;
    if (candidates.size() > 1 && !source->suits(*assembly)) continue;
    if (source->needs_room()) DWS_RETURN_IF_ERROR(assembly->MakeRoom());
    last = ReadFull(*source, source == candidates.back(), transfer, *assembly);
    if (last.ok()) break;
    // What cannot be kept here can be kept from no source.
    if (const Status own = assembly->failed(); !own.ok()) return own;
    if (absl::IsCancelled(last)) return last;
    if (source->reads_memory() && options_.only_full.has_value()) {
      return Missed(*source, transfer, *assembly, last);
    }
    if (source == candidates.back()) return last;
    PassedOver(*source, transfer, last);
  }
  if (assembly->missing_blocks() > 0) return last;
  Note(transfer);
  return assembly->Finish();
}

// Blocks of this version that are here may be those of an attempt to capture it that was given up.
// The digests show it.
Status SourceChain::ReadCapture(Transfer& transfer, FullAssembly& assembly) {
  const EarlyVersion& early = *assembly.early();
  const uint64_t wanted = MissingBytes(assembly);
  for (Source* const source : Candidates(Content::kFull)) {
    // A better source that reads what is published is worth waiting for.
    if (!source->reads_captures(Content::kFull, transfer.piece)) break;
    if (!source->suits(assembly)) continue;
    if (source->needs_room()) DWS_RETURN_IF_ERROR(assembly.MakeRoom());
    const uint64_t before = MissingBytes(assembly);
    const Status read = source->ReadFullCapture(transfer.piece, assembly);
    transfer.Came(*source, before, MissingBytes(assembly));
    if (const Status own = assembly.failed(); !own.ok()) return own;
    if (absl::IsCancelled(read)) return read;
    if (read.ok()) break;
    transfer.Passed(*source, Message(read));
  }
  Duration poll = kCapturePollMin;
  while (early.stage() == EarlyVersion::Stage::kCapturing) {
    if (!Sleep(poll)) return CancelledError("the receiver is shutting down");
    poll = std::min(2 * poll, kCapturePollMax);
  }
  if (early.stage() == EarlyVersion::Stage::kGone) {
    return UnavailableError("version {} was not published, or its capture did not go on",
                            transfer.piece.target.version.value());
  }
  DWS_RETURN_IF_ERROR(early.describe());
  if (const Status right = DropWrong(assembly); !right.ok()) {
    LogInfo("capture_read_again",
            {{"version", transfer.piece.target.version.value()}, {"reason", Message(right)}});
  }
  uint64_t kept = wanted - MissingBytes(assembly);
  for (auto& [source, bytes] : transfer.bytes) kept -= bytes = std::min(bytes, kept);
  return OkStatus();
}

Status SourceChain::Missed(const Source& source, const Transfer& transfer,
                           const FullAssembly& assembly, const Status& why) {
  const SenderIndex sender = transfer.sender();
  const auto brought = transfer.bytes.find(&source);
  const Status missed = MakeStatus(
      absl::IsDataLoss(why) ? why.code() : absl::StatusCode::kUnavailable,
      fmt::format("full tensors of {} may come by {} only, which brought {} of {} bytes of version "
                  "{}: {}",
                  NameOf(options_.senders, sender), source.name(),
                  brought != transfer.bytes.end() ? brought->second : 0, transfer.wanted_bytes,
                  transfer.piece.target.version.value(), Message(why)));
  assembly.Refuse(missed);
  std::string detail = source.detail(sender);
  MutexLock lock(mutex_);
  Last& last = last_[{sender, Content::kFull}];
  last.detail = std::move(detail);
  last.reason = std::string(Message(missed));
  return UnavailableError("{}", last.reason);
}

Source* SourceChain::CaptureReader(Content content, const Piece& piece) const {
  for (Source* const source : Candidates(content)) {
    if (source->reads_captures(content, piece)) return source;
    if (content == Content::kFull) break;  // as ReadCapture
  }
  return nullptr;
}

void SourceChain::Refused(const Piece& piece) {
  for (Source* const source : sources_) source->Refused(piece);
}

void SourceChain::Note(const Transfer& transfer) {
  const SenderIndex sender = transfer.sender();
  const Source* most = nullptr;
  for (const auto& [source, bytes] : transfer.bytes) {
    if (most == nullptr || bytes > transfer.bytes.at(most)) most = source;
  }
  if (most == nullptr) return;
  Last now{.source = std::string(most->name()),
           .detail = most->detail(sender),
           .reason = transfer.reason};
  MutexLock lock(mutex_);
  for (const auto& [source, bytes] : transfer.bytes) {
    bytes_[{source, transfer.content}] += bytes;
  }
  Last& last = last_[{sender, transfer.content}];
  // Deltas come with each version: who brings them may change each time.
  const bool news = transfer.content == Content::kFull &&
                    (last.source != now.source || last.reason != now.reason);
  last = std::move(now);
  if (!news) return;
  LogInfo("full_source", {{"sender", NameOf(options_.senders, sender)},
                          {"source", last.source},
                          {"detail", last.detail},
                          {"reason", last.reason}});
}

SourceChain::Last SourceChain::last(SenderIndex sender, Content content) const {
  MutexLock lock(mutex_);
  const auto found = last_.find({sender, content});
  return found == last_.end() ? Last() : found->second;
}

std::vector<SourceChain::Total> SourceChain::totals() const {
  MutexLock lock(mutex_);
  std::vector<Total> totals;
  for (const Source* const source : sources_) {
    for (const Content content : {Content::kDelta, Content::kFull}) {
      if (!source->brings(content)) continue;
      const auto found = bytes_.find({source, content});
      totals.push_back({.source = source->name(),
                        .content = content,
                        .bytes = found == bytes_.end() ? 0 : found->second});
    }
  }
  return totals;
}

}  // namespace dws
