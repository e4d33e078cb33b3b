"""Plants the mutations of the simulation in copies of product code: python3 mutations.py SOURCE... OUT_FOLDER

A mutation breaks a rule on purpose, to show that the simulation detects it. Each is an edit of a line of the product, guarded
by `Mutated(Mutation::kName)` (options.h): off, the copy does what the original does. An edit whose text is no longer in its
file exactly once fails the build, so the mutations stay in the code that ships.
"""
from __future__ import annotations

import pathlib
import sys
from typing import NamedTuple


class Edit(NamedTuple):
    """One line of a product file, and its replacement."""

    source: str
    old: str
    new: str


def mutated(name: str) -> str:
    return f"sim::Mutated(sim::Mutation::{name})"


def _models() -> list[list[Edit]]:
    return [_of_bytes() + _of_receivers() + _of_groups(), _of_pieces() + _of_outboxes() + _of_leaders() + _of_members()]


def _of_bytes() -> list[Edit]:
    return [
        # A delta is staged whatever memory it meets.
        Edit(
            "receiver_daemon/weights/staging.cc",
            "switch (JudgeSlice(live, delta, predicted)) {",
            f"switch ({mutated('kSkipBaseCheck')} ? SliceVerdict::kAdmitted : JudgeSlice(live, delta, predicted)) {{",
        ),
        # Full tensors are compared neither when they arrive nor when they are written.
        Edit(
            "receiver_daemon/weights/staging.cc",
            "if (digest != expected[slice.value()]) {",
            f"if (digest != expected[slice.value()] && !{mutated('kSkipFullCheck')}) {{",
        ),
        Edit(
            "receiver_daemon/commit/commit_pipeline.cc",
            "if (states[i].Matches(expected)) continue;",
            f"if (states[i].Matches(expected) || {mutated('kSkipFullCheck')}) continue;",
        ),
        Edit(
            "common/spool/full_assembly.cc",
            "if (!complete || digest == want_.expected[whole.slice.value()]) continue;",
            f"if (!complete || digest == want_.expected[whole.slice.value()] || {mutated('kSkipFullCheck')}) continue;",
        ),
        # What the first source does not bring is given up.
        Edit(
            "common/sources/source_chain.cc",
            "if (absl::IsCancelled(last) || absl::IsResourceExhausted(last)) return last;",
            "if (absl::IsCancelled(last) || absl::IsResourceExhausted(last) || "
            f"{mutated('kOneDeltaSource')}) return last;",
        ),
        Edit(
            "common/sources/source_chain.cc",
            "if (source == candidates.back()) return last;",
            f"if (source == candidates.back() || {mutated('kOneFullSource')}) return last;",
        ),
    ]


def _of_receivers() -> list[Edit]:
    return [
        # An engine that attaches is assumed to hold the last committed version.
        Edit(
            "receiver_daemon/commit/prepare.cc",
            "if (!SlicesThatDiffer(slices, rank.published).empty()) return std::optional<Prepared>();",
            "if (!SlicesThatDiffer(slices, rank.published).empty() && "
            f"!{mutated('kTrustLedger')}) return std::optional<Prepared>();",
        ),
        # A commit that failed in the middle still resumes the engine.
        Edit(
            "receiver_daemon/commit/commit_pipeline.cc",
            "    case CommitState::AfterError::kStayPaused:\n",
            "    case CommitState::AfterError::kStayPaused:\n"
            f"      if ({mutated('kResumeTorn')} && attempt.live.at.has_value()) {{\n"
            "        (void)attempt.engine.control.Resume(VersionOf(attempt.live));\n"
            "      }\n",
        ),
        # The state of an engine's memory is assumed for the engine that attaches next.
        Edit(
            "receiver_daemon/worker/live_engine.cc",
            "  Forget();\n  before_ = before;\n",
            f"  if (!{mutated('kIgnoreGeneration')}) Forget();\n  before_ = before;\n",
        ),
        # After a commit that failed in the middle the old version counts as there.
        Edit(
            "receiver_daemon/commit/commit_pipeline.cc",
            "      attempt.live.Forget();\n      return cause;\n",
            f"      if (!{mutated('kKeepTorn')}) attempt.live.Forget();\n      return cause;\n",
        ),
        # A version that is held back is committed between boundaries.
        Edit(
            "receiver_daemon/worker/solo_driver.cc",
            "  return parts_.boundary.Hold();\n",
            f"  return parts_.boundary.Hold() || {mutated('kIgnorePolicy')};\n",
        ),
        # A receiver stages past its cap.
        Edit(
            "receiver_daemon/commit/prepare.cc",
            "return RankStagingMax(options_.staging_bytes_max, job.target.ranks.size());",
            f"return {mutated('kStageTooMuch')} ? UINT64_MAX\n"
            "             : RankStagingMax(options_.staging_bytes_max, job.target.ranks.size());",
        ),
    ]


def _of_groups() -> list[Edit]:
    return [
        # A leader accepts a late COMMITTED as the answer to its last COMMIT.
        Edit(
            "common/sync_state/group_leader_state.cc",
            "if (!member.told.has_value() || committed.round != member.told->round ||\n",
            f"if (!member.told.has_value() ||\n      (committed.round != member.told->round && !{mutated('kAcceptStaleNonce')}) ||\n",
        ),
        # A leader that loses a member in a COMMIT releases the others.
        Edit(
            "common/sync_state/group_leader_state.cc",
            "if (round_->phase != Phase::kCommitting) return Abort();\n",
            "if (round_->phase != Phase::kCommitting) return Abort();\n"
            f"  for (uint32_t m = 0; {mutated('kReleaseAfterLoss')} && m < members_.size(); ++m) {{\n"
            "    const Member& other = members_[m];\n"
            "    if (!other.live.has_value() || !other.generation.has_value()) continue;\n"
            "    Send(m, NextNonce(), GroupResume{.version = *other.live, .generation = *other.generation});\n"
            "  }\n",
        ),
        # A leader orders a commit that it has not recorded.
        Edit(
            "common/sync_state/group_leader_state.cc",
            "  round_->phase = Phase::kDeciding;\n",
            f"  if ({mutated('kSkipDecision')}) {{\n"
            "    round_->phase = Phase::kPausing;\n"
            "    actions_.emplace_back(PauseEngine{.round = round_->nonce});\n"
            "    return;\n"
            "  }\n"
            "  round_->phase = Phase::kDeciding;\n",
        ),
    ]


def _of_pieces() -> list[Edit]:
    accumulate = "common/train_state/accumulate_state.cc"
    return [
        Edit(
            accumulate,
            "if (attempt == attempt_) {",
            f"if (attempt == attempt_ || {mutated('kSkipAttempt')}) {{",
        ),
        Edit(
            accumulate,
            "if (piece.number.value() != pusher.added + 1) return Add::kStale;",
            f"if (piece.number.value() != pusher.added + 1 && !{mutated('kSkipNumber')}) return Add::kStale;",
        ),
        Edit(
            accumulate,
            "  unit.busy = true;\n",
            f"  unit.busy = true;\n  if ({mutated('kAdvanceEarly')}) ++pusher.added;\n",
        ),
        Edit(
            accumulate,
            "DWS_CHECK(pusher.adding.has_value() && piece.number.value() == pusher.added + 1);",
            "DWS_CHECK(pusher.adding.has_value());",
        ),
        Edit(
            accumulate,
            "  ++pusher.added;\n",
            f"  if (!{mutated('kAdvanceEarly')}) ++pusher.added;\n",
        ),
        Edit(
            accumulate,
            "  return pusher.finish.has_value() && pusher.added == pusher.finish->count;\n",
            "  return pusher.finish.has_value() &&\n"
            f"         (pusher.added == pusher.finish->count || {mutated('kForgetCount')});\n",
        ),
        Edit(
            accumulate,
            "return std::exchange(unit.touched, true) ? Add::kAdd",
            f"return std::exchange(unit.touched, true) || {mutated('kNeverStore')} ? Add::kAdd",
        ),
        Edit(
            accumulate,
            "if (old_adds_ > 0 || unit.busy) return",
            f"if ((old_adds_ > 0 && !{mutated('kMixAttempts')}) || unit.busy) return",
        ),
        Edit(
            accumulate,
            "    if (!IsComplete(pusher)) return false;\n",
            f"    const bool forgets = {mutated('kForgetAsked')} && counts_ == Counts::kAsked;\n"
            "    if (!IsComplete(pusher) && (!forgets || !any)) return false;\n",
        ),
        Edit(
            accumulate,
            "    if (IsCounted(pusher)) weight += pusher.finish->weight;\n",
            "    if (IsCounted(pusher) && pusher.finish.has_value()) weight += pusher.finish->weight;\n",
        ),
    ]


def _of_outboxes() -> list[Edit]:
    outbox = "common/train_state/outbox_state.cc"
    return [
        Edit(
            outbox,
            "if (item.push > 0) --pending_[item.slot.value()];",
            f"if (item.push > 0 && {mutated('kFreeEarly')}) pending_[item.slot.value()] = 1;\n"
            "    if (item.push > 0 && pending_[item.slot.value()] > 0) --pending_[item.slot.value()];",
        ),
        Edit(
            outbox,
            "if (now - known->sent_at >= limits::kTrainRepeat) known->OfferAgain();",
            f"if (now - known->sent_at >= limits::kTrainRepeat && !{mutated('kNeverRepeat')}) known->OfferAgain();",
        ),
        Edit(
            outbox,
            "    RouteOf(TrainerRank(o), unit).items.push_back({.push = pushed_, .unit = unit, .slot = *slot});\n",
            "    const Item item{.push = pushed_, .unit = unit, .slot = *slot};\n"
            "    Route& route = RouteOf(TrainerRank(o), unit);\n"
            "    Route& direct = routes_.at(DirectTo(TrainerRank(o)));\n"
            "    route.items.push_back(item);\n"
            f"    if (!{mutated('kTwoRoutes')} || &route == &direct) continue;\n"
            "    direct.items.push_back(item);\n"
            "    ++pending_[slot->value()];\n",
        ),
        Edit(
            outbox,
            "routes_.at(DirectTo(owner)).held = true;",
            f"routes_.at(DirectTo(owner)).held = !{mutated('kNeverHold')};",
        ),
        Edit(
            outbox,
            "DWS_CHECK(route.held && finish_.has_value());",
            f"DWS_CHECK({mutated('kNeverHold')} || {mutated('kForgetAsked')} || (route.held && finish_.has_value()));\n"
            "  if (!finish_.has_value()) return;",
        ),
    ]


def _of_leaders() -> list[Edit]:
    leader = "common/train_state/minibatch_leader_state.cc"
    return [
        Edit(
            leader,
            "  if (phase() != Phase::kOpen || !InAttempt(member)) return;  // rule 4\n",
            f"  if ({mutated('kDecideTwice')} && InAttempt(member)) step_.reset();\n"
            "  if (phase() != Phase::kOpen || !InAttempt(member)) return;\n",
        ),
        Edit(
            leader,
            "if (!InAttempt(member) || !member.report->record.sealed.has_value()) return;",
            f"if ({mutated('kStepEarly')} && r > 0) break;\n"
            "    if (!InAttempt(member) || !member.report->record.sealed.has_value()) return;",
        ),
        Edit(
            leader,
            "    if (newest && record.step.has_value()) step_ = record.step;\n",
            f"    if (newest && record.step.has_value() && !{mutated('kForgetStep')}) step_ = record.step;\n"
            f"    if (newest && record.sealed.has_value() && {mutated('kGuessStep')}) {{\n"
            "      step_ = StepDecision();\n"
            "      step_->attempt = attempt_;\n"
            "    }\n",
        ),
        Edit(
            leader,
            "if (contradicts || ",
            f"if ((contradicts && !{mutated('kForgetStep')}) || ",
        ),
        Edit(
            leader,
            "    member.next_send = now + limits::kTrainRepeat;\n",
            "    member.next_send = now + limits::kTrainRepeat;\n"
            f"    if ({mutated('kTellOnce')} && !asking_) member.next_send = TimePoint::max();\n",
        ),
        Edit(
            leader,
            "step.finite = step.finite && sealed.finite;",
            f"step.finite = step.finite && (sealed.finite || {mutated('kStepInfinite')});",
        ),
        Edit(
            leader,
            "const bool stood_still = now",
            f"const bool stood_still = !{mutated('kBlameOthers')} && now",
        ),
        Edit(
            leader,
            "now - member.heard < peer_timeout_) continue;",
            f"now - ({mutated('kSlowIsDead')} ? since_ : member.heard) < peer_timeout_) continue;",
        ),
        Edit(
            leader,
            "    if (!broken_.has_value()) AbandonForJoin(rank, now);\n",
            f"    if (!broken_.has_value() && !{mutated('kJoinQuietly')}) AbandonForJoin(rank, now);\n"
            f"    if ({mutated('kJoinQuietly')} && !abandon_.has_value()) AbandonForJoin(rank, now);\n",
        ),
        Edit(
            leader,
            "  abandon_.emplace();\n",
            f"  if ({mutated('kReuseAttempt')}) attempt_ = {{.minibatch = attempt_.minibatch, .term = LeaderTerm(1), "
            ".attempt = previous + 1};\n  abandon_.emplace();\n",
        ),
        Edit(
            leader,
            "  const uint32_t last = attempt_.term == term_ ? attempt_.attempt : 0;\n",
            "  const uint32_t last = attempt_.term == term_ ? attempt_.attempt : 0;\n"
            "  [[maybe_unused]] const uint32_t previous = attempt_.attempt;\n",
        ),
    ]


def _of_members() -> list[Edit]:
    member = "common/train_state/minibatch_member_state.cc"
    return [
        Edit(
            member,
            "  if (term < record_.term) {\n",
            f"  if (term < record_.term && !{mutated('kFollowAnyTerm')}) {{\n",
        ),
        Edit(
            member,
            "  if (down.epoch != epoch_) {\n",
            f"  if (down.epoch != epoch_ && !{mutated('kFollowAnyEpoch')}) {{\n",
        ),
        Edit(
            member,
            "  if (Undecided()) Lose(",
            f"  if (Undecided() && !{mutated('kKeepAttempt')}) Lose(",
        ),
        Edit(
            "common/train_state/train_messages.cc",
            "  if (theirs.stream != mine.stream) {\n",
            f"  if (theirs.stream != mine.stream && !{mutated('kFollowAnyJob')}) {{\n",
        ),
    ]


def _plant(path: str, text: str, edits: list[Edit]) -> str:
    for edit in edits:
        if edit.source != path:
            continue
        found = text.count(edit.old)
        if found != 1:
            raise SystemExit(f"mutations.py: {path} has {found} times, expected once:\n{edit.old}")
        text = text.replace(edit.old, edit.new)
    return f'#include "tests/simulation/options.h"\n{text}'


def main() -> None:
    """Copies the sources, with the mutations planted, into the folder."""
    *sources, folder = sys.argv[1:]
    of_these = [edits for edits in _models() if {edit.source for edit in edits} == set(sources)]
    if len(of_these) != 1:
        raise SystemExit(f"mutations.py: the sources are {sources}, the edits of each model are of others")
    for source in sources:
        copy = pathlib.Path(folder) / ("mutated_" + pathlib.Path(source).name)
        copy.write_text(_plant(source, pathlib.Path(source).read_text("utf-8"), of_these[0]), "utf-8")


if __name__ == "__main__":
    main()
