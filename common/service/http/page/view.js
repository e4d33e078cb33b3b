"use strict";
// What the page says: pure functions from the JSON of /status (proto/admin.proto) to texts, figures and rows, which page.js draws.
// It decides nothing about what is wrong: a problem is a text, or a mark, that a daemon has put into its status. Texts come from
// other machines and are not trusted; page.js shows them as text and nothing else.

// Where docs/runbook.md says what to do. Each is the heading of a section there, as a test holds.
const SECTIONS = {
  notReady: "DwsDaemonNotReady", stale: "An engine that is stale", noSender: "DwsReceiverWithoutSender", held: "DwsReceiverHeld",
  paused: "DwsEnginePausedTooLong", leftOut: "DwsReceiverLeftOut", absent: "DwsReceiverAbsent", refused: "First look",
  awaited: "A receiver that does not come back", folder: "DwsFolderFailing", insecure: "DwsInsecure",
  group: "A commit group that waits",
};
const NAMES_SHOWN = 5;
const DRAINS = {
  DRAIN_STATE_DRAINING: "Draining: an operator has ordered it, and work in flight ends",
  DRAIN_STATE_DRAINED: "Drained by an operator: dwsctl drain --undo ends it",
};

// Numbers of 64 bits are texts in this JSON, and NaN and Infinity too.
function number(value) {
  const known = typeof value === "number" || (typeof value === "string" && value !== "");
  const result = known ? Number(value) : NaN;
  return Number.isFinite(result) ? result : NaN;
}
const text = (value) => (typeof value === "string" ? value : "");
const object = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
const list = (value) => (Array.isArray(value) ? value : []);
const total = (numbers) => numbers.reduce((sum, one) => sum + (one || 0), 0);

function rounded(value) {
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toPrecision(value < 1 ? 2 : 3);
}
function bytes(value) {
  if (!(value >= 0)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; value >= 1000 && unit + 1 < units.length; ++unit) value /= 1024;
  return `${rounded(value)}\u00a0${units[unit]}`;
}
function seconds(value) {
  if (!(value >= 0)) return "–";
  if (value === 0) return "0\u00a0s";
  if (value < 1e-3) return `${rounded(value * 1e6)}\u00a0µs`;
  if (value < 1) return `${rounded(value * 1e3)}\u00a0ms`;
  if (value < 100) return `${rounded(value)}\u00a0s`;
  const of = (size, name, smaller, small) =>
    `${Math.floor(value / size)}\u00a0${name} ${Math.floor((value % size) / smaller)}\u00a0${small}`;
  if (value < 3600) return of(60, "min", 1, "s");
  return value < 86400 ? of(3600, "h", 60, "min") : of(86400, "d", 3600, "h");
}
function percent(ratio) {
  if (!(ratio >= 0)) return "–";
  return ratio > 0 && ratio < 1e-5 ? "<\u00a00.001\u00a0%" : `${rounded(ratio * 100)}\u00a0%`;
}
// A number stays on one line with its unit: \u00a0. Groups of three digits by a thin space, from 10,000 on.
const grouped = (value) => String(value).replace(/^\d{5,}$/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, "\u2009"));
const count = (value, one, many) => `${grouped(value)}\u00a0${value === 1 ? one : many || `${one}s`}`;
const version = (value) => (number(value) > 0 ? String(value) : "none");
const clock = (unix) => (unix > 0 ? new Date(unix * 1000).toLocaleTimeString([], { hourCycle: "h23" }) : "–");

// The time between two versions that half of the gaps do not exceed.
function usualGap(history) {
  const gaps = history.slice(1).map((row, i) => row.at - history[i].at).filter((gap) => gap > 0).sort((a, b) => a - b);
  return gaps.length < 3 ? NaN : gaps[Math.floor(gaps.length / 2)];
}
function ageNote(word, age, history) {
  const gap = usualGap(history);
  return `${word} ${seconds(age)}${word === "for" ? "" : " ago"}${gap > 0 ? `; usually every ${seconds(gap)}` : ""}`;
}

// What both daemons tell in the same fields. `found` are the problems of one of them, apart from the reason; `section` says what to
// do about that.
function verdict(status, found, section) {
  const reason = text(status.reason);
  const drain = DRAINS[status.drain];
  const counted = found.filter((problem) => problem.level !== "note").length + (reason ? 1 : 0);
  if (!status.ready) return { level: "bad", title: "Not ready", reason: reason || "the daemon gives no reason", section };
  if (counted > 0) return { level: "warn", title: `Ready, with ${count(counted, "problem")}`, reason, section: reason ? section : "" };
  return { level: drain ? "warn" : "good", title: drain ? "Ready, but draining" : "Ready", reason: drain || "", section: "" };
}
function commonFacts(status) {
  const build = object(status.build);
  const tls = object(status.tls);
  const known = text(build.commit) !== "" && build.commit !== "unknown";
  const expires = number(tls.expires_unix_seconds);
  return [
    ["Build", `${text(status.build_version)}${known ? `, commit ${text(build.commit)}` : ""}, ${text(build.compiler)}, ` +
      `${text(build.configuration)}, protocol ${number(build.protocol_major)}.${number(build.protocol_minor)}`],
    ["Up for", seconds(number(status.uptime_seconds))],
    ["TLS", !tls.enabled ? "off" : `on${text(tls.identity) ? `, ${tls.identity}` : ""}` +
      (expires > 0 ? `; the certificate ends in ${seconds(Math.max(0, expires - number(status.unix_seconds)))}` : "")],
  ];
}
function commonNotes(status) {
  const insecure = list(status.insecure).map(text).filter(Boolean);
  if (insecure.length === 0) return [];
  return [{ level: "note", who: "TCP without TLS", what: insecure.join(", "), section: SECTIONS.insecure }];
}
// A folder whose failure is not the reason already.
function failing(status, who, what) {
  return what && !text(status.reason).includes(what) ? [{ who, what, section: SECTIONS.folder }] : [];
}

// A sender. ---------------------------------------------------------------------------------------------------------------------

function senderHistory(sender) {
  return list(sender.history).map(object).map((row) => {
    const stages = object(row.stages);
    const compared = total([number(stages.compare), number(stages.lists), number(stages.check)]);
    const parts = [compared, number(stages.copy) || 0, number(stages.encode) || 0, number(stages.seal) || 0];
    const rest = Math.max(0, (number(row.capture_seconds) || 0) - parts[0] - parts[1] - parts[2]);
    return {
      version: version(row.version), number: number(row.version), at: number(row.unix_seconds),
      bytes: number(row.wire_bytes), whole: number(row.wire_bytes) >= number(row.full_bytes), full: number(row.full_bytes),
      density: number(row.density_ratio), pause: number(row.commits) > 0 ? number(row.pause_seconds_max) : NaN,
      commits: number(row.commits), parts: [...parts, rest],
    };
  });
}
function stateOf(peer) {
  if (!peer.present) return peer.awaited ? "awaited" : "absent";
  return peer.left_out ? "left out" : "present";
}
function peerRows(sender) {
  return list(sender.receivers).map(object).map((peer) => ({
    id: text(peer.receiver_id), state: stateOf(peer), error: text(peer.last_error), present: peer.present === true,
    trouble: text(peer.last_error) !== "" || peer.left_out === true || peer.awaited === true,
    lag: number(peer.lag_versions) || 0, peer,
  })).sort((a, b) => b.trouble - a.trouble || b.present - a.present || b.lag - a.lag || (a.id < b.id ? -1 : 1));
}
function peerProblems(rows) {
  const said = { "left out": ["has committed nothing while others have: waits leave it out", SECTIONS.leftOut],
    awaited: ["was present before the sender's restart, and is not back", SECTIONS.awaited] };
  return rows.filter((row) => row.trouble).map((row) => {
    const [mark, section] = said[row.state] || ["", SECTIONS.refused];
    return { who: `receiver ${row.id}`, what: [mark, row.error].filter(Boolean).join(": "), section };
  });
}
function absentNote(rows) {
  const names = rows.filter((row) => row.state === "absent").map((row) => row.id);
  if (names.length === 0) return [];
  const more = names.length > NAMES_SHOWN ? ` and ${grouped(names.length - NAMES_SHOWN)} more` : "";
  return [{ level: "note", who: "absent", what: names.slice(0, NAMES_SHOWN).join(", ") + more, section: SECTIONS.absent }];
}
function shares(sender) {
  const present = number(sender.receivers_present);
  const versions = list(sender.versions).map(object).slice(-6).reverse();
  const rows = versions.map((row, i) => ({
    label: `version ${version(row.version)}`, late: i > 0,
    count: number(row.committed) - (i > 0 ? number(versions[i - 1].committed) : 0),
  }));
  const rest = present - (versions.length > 0 ? number(versions[versions.length - 1].committed) : 0);
  rows.push({ label: versions.length > 0 ? "an older one, or none" : "none", late: true, count: rest });
  return { total: present, rows: rows.filter((row, i) => i === 0 || row.count > 0) };
}
function senderView(status) {
  const sender = object(status.sender);
  const history = senderHistory(sender);
  const last = history[history.length - 1];
  const rows = peerRows(sender);
  const present = number(sender.receivers_present) || 0;
  const absent = number(sender.receivers_absent) || 0;
  const newest = object(list(sender.versions)[list(sender.versions).length - 1]);
  const done = number(newest.committed) || 0;
  const lag = Math.max(0, ...rows.filter((row) => row.present).map((row) => row.lag));
  const told = history.filter((row) => row.commits > 0);
  const paused = told[told.length - 1];
  const demand = object(sender.on_demand);
  const problems = [
    ...failing(status, "the folder of slime's versions", text(object(sender.slime).failing)),
    ...failing(status, "the shared directory", text(object(sender.shared).failing)),
    ...peerProblems(rows), ...absentNote(rows), ...commonNotes(status),
  ];
  const shown = rows.length < present + absent ? ` The sender names ${grouped(rows.length)} of them.` : "";
  return {
    title: "dws-sender", subtitle: `job ${text(status.job_id)}, trainer rank ${number(sender.trainer_rank)}` +
      (number(sender.world_size) > 0 ? ` of ${number(sender.world_size)}` : ""),
    verdict: verdict(status, problems, SECTIONS.notReady), problems,
    figures: [
      { label: "Newest version", value: version(sender.newest_version),
        note: number(sender.newest_version) > 0 ? ageNote("published", number(sender.seconds_since_version), history) : "nothing is published" },
      { label: "Receivers with it", value: `${grouped(done)} of ${grouped(present)}`,
        note: (lag > 0 ? `the others are up to ${count(lag, "version")} behind` : done < present ? "the others are not named here"
          : present > 0 ? "no receiver is behind" : "no receiver is connected") +
          (absent > 0 ? `; ${grouped(absent)} absent` : "") },
      { label: "Bytes to fetch", value: last ? bytes(last.bytes) : "–",
        note: last ? `${percent(last.bytes / last.full)} of ${bytes(last.full)}` +
          (last.density >= 0 ? `; ${percent(last.density)} of elements changed` : "; sent in full") : "" },
      { label: "Longest pause", value: paused ? seconds(paused.pause) : "–",
        note: paused ? `for version ${paused.version}, of ${count(paused.commits, "engine")}` : "no receiver has told one" },
      { label: "Trainer", value: sender.trainer_present ? "present" : "absent", level: sender.trainer_present ? "" : "warn",
        note: last ? `capture of the last version took ${seconds(total(last.parts))}` : "" },
    ],
    history, plotsNote: "Since this process started.",
    plots: [
      { key: "bytes", title: "Bytes to fetch", format: bytes, value: (row) => row.bytes, whole: (row) => row.whole },
      { key: "density", title: "Elements changed", format: percent, value: (row) => row.density },
      { key: "pause", title: "Longest pause", format: seconds, value: (row) => row.pause },
      { key: "capture", title: "Capture", format: seconds, parts: (row) => row.parts,
        names: ["compare", "copy", "encode", "seal", "other"] },
    ],
    shares: present > 0 ? { note: `${count(present, "receiver")} present.`, ...shares(sender) } : undefined,
    tables: [{
      key: "receivers", title: "Receivers", ids: true, note: `Those in trouble first.${shown}`, filter: true, empty: "No receiver has connected.",
      columns: ["Receiver", "State", "#Version", "#Behind", "#Staged", "#Fetched", "#Pause", "#Refused"],
      rows: rows.map((row) => ({ level: row.trouble ? "warn" : "", said: row.error, cells: [row.id, row.state, version(row.peer.committed_version),
        grouped(row.lag), version(row.peer.staged_version), bytes(number(row.peer.fetched_bytes)), seconds(number(row.peer.pause_seconds)),
        grouped(number(row.peer.nacks))] })),
    }, versionTable(history, ["#Bytes", "#Changed", "#Capture", "#Pause", "#Reports"], (row) => [bytes(row.bytes), percent(row.density),
      seconds(total(row.parts)), seconds(row.pause), grouped(row.commits)])],
    facts: [
      ["Trainer's stream", `incarnation ${text(object(sender.stream).incarnation) || "none"}, rank epoch ${text(sender.rank_epoch)}`],
      ["Snapshot", bytes(number(sender.snapshot_bytes))],
      ["Retained deltas", `${bytes(number(sender.retained_bytes))} of ${bytes(number(sender.retain_bytes_max))}, ` +
        `${list(sender.versions).length} of ${number(sender.retain_versions_max)} versions`],
      ...(sender.shared ? [["Shared directory", `version ${version(sender.shared.newest_version)} in ${text(sender.shared.folder)}`]] : []),
      ...(sender.slime ? [["slime's versions", `version ${version(sender.slime.newest_version)} in ${text(sender.slime.folder)}`]] : []),
      ...(sender.on_demand ? [["Training on demand", `minibatch ${version(demand.minibatch)}, ${text(demand.phase) || "not joined"}` +
        (text(demand.waits_for) ? `, waits ${seconds(number(demand.phase_seconds))} for ${demand.waits_for}` : "")]] : []),
      ...commonFacts(status),
    ],
  };
}
function versionTable(history, columns, cells) {
  return { key: "versions", title: "Versions", note: "Newest first.", empty: "No version yet.", columns: ["Version", "At", ...columns],
    rows: [...history].reverse().map((row) => ({ cells: [row.version, clock(row.at), ...cells(row)] })) };
}

// A receiver, with senders or with a folder that it follows. ---------------------------------------------------------------------

function receiverHistory(receiver) {
  return list(receiver.history).map(object).map((row) => {
    const parts = [row.fetch_seconds, row.stage_seconds, row.commit_seconds].map((part) => number(part) || 0);
    return {
      version: version(row.version), number: number(row.version), at: number(row.unix_seconds),
      bytes: number(row.fetched_bytes), full: number(row.full_bytes),
      whole: row.repaired === true || !Number.isFinite(number(row.density_ratio)),
      density: number(row.density_ratio), pause: number(row.pause_seconds),
      parts: [...parts, 0, Math.max(0, (number(row.total_seconds) || 0) - total(parts))],
    };
  });
}
function senderProblems(receiver) {
  return list(receiver.senders).map(object).flatMap((peer) => {
    const who = `sender ${text(peer.address)}`;
    const wrong = text(peer.last_error) || (peer.connected ? "" : "is not connected");
    const notes = [text(peer.full_way_reason), text(peer.delta_source_reason)].filter(Boolean);
    return [...(wrong ? [{ who, what: wrong, section: SECTIONS.noSender }] : []),
      ...notes.map((what) => ({ level: "note", who, what, section: "" }))];
  });
}
function groupProblems(group) {
  const lost = group.group_id && !group.leader_connected ? [{ who: "the group's leader", what: text(group.last_error) || "is not connected" }] : [];
  const members = list(group.members).map(object).map((member, i) => ({
    who: `member ${i} ${text(member.receiver_id)}`,
    what: text(member.last_error) || (member.connected ? "" : "is not connected"),
  })).filter((member) => member.what);
  return [...lost, ...members].map((problem) => ({ ...problem, section: SECTIONS.group }));
}
function receiverProblems(status, receiver) {
  return [
    ...(receiver.engine_paused ? [{ who: "the engine", what: `is attached, and has had no version to generate with for ${
      seconds(number(receiver.engine_paused_seconds))}`, section: SECTIONS.paused }] : []),
    ...failing(status, "the folder", text(object(receiver.follower).failing)),
    ...senderProblems(receiver), ...groupProblems(object(receiver.group)),
    ...(number(receiver.held_seconds) > 0 ? [{ level: "note", who: `--commit-policy=${text(receiver.commit_policy)}`,
      what: `has held a staged version for ${seconds(number(receiver.held_seconds))}`, section: SECTIONS.held }] : []),
    ...commonNotes(status),
  ];
}
function progress(receiver) {
  const whole = number(receiver.stage_total_bytes);
  const note = number(receiver.target_version) > 0 ? `version ${version(receiver.target_version)}` : "nothing in flight";
  if (!(whole > 0)) return [text(receiver.stage), note];
  return [text(receiver.stage), `${note}, ${percent(Math.min(1, number(receiver.stage_done_bytes) / whole))} of ${bytes(whole)}`];
}
function receiverFigures(receiver, history) {
  const last = history[history.length - 1];
  const follower = receiver.follower ? object(receiver.follower) : undefined;
  const lag = number(receiver.version_lag);
  const ranks = list(receiver.engine_ranks).map(object);
  const [doing, what] = progress(receiver);
  const engine = { label: "Engine", value: receiver.engine_paused ? "paused" : ranks.some((rank) => rank.generating) ? "generating" : "idle",
    level: receiver.engine_paused ? "warn" : "",
    note: `${ranks.filter((rank) => rank.attached).length} of ${count(number(receiver.engine_ranks_expected) || 0, "rank")} attached` };
  return [
    { label: follower && !text(follower.engine_url) ? "Checkpoint has version" : "Engine has version", value: version(receiver.committed_version),
      note: number(receiver.committed_version) > 0 ? ageNote("for", number(receiver.seconds_since_version), history) : "" },
    { label: "Behind", value: Number.isFinite(lag) ? count(lag, "version") : "not known", level: Number.isFinite(lag) ? "" : "warn",
      note: `newest ${follower ? "in the folder" : "offered"}: ${version(receiver.newest_version)}` },
    { label: "Now", value: doing || "–", note: follower && text(follower.waits_for) ? follower.waits_for : what },
    ...(follower ? [] : [{ label: "Bytes fetched", value: last ? bytes(last.bytes) : "–",
      note: last ? `${percent(last.bytes / last.full)} of ${bytes(last.full)}` +
        (last.density >= 0 ? `; ${percent(last.density)} of elements changed` : "; fetched in full") : "" }]),
    { label: "Last pause", value: last && last.pause > 0 ? seconds(last.pause) : "–",
      note: last ? `the version took ${seconds(total(last.parts))} ${follower ? "to apply" : "since its announcement"}` : "" },
    ...(follower ? [] : [engine]),
  ];
}
function receiverTables(receiver, history) {
  const members = list(object(receiver.group).members).map(object);
  return [
    ...(receiver.follower ? [] : [{
      key: "senders", title: "Senders", ids: true, empty: "No sender is configured.", filter: true, note: "Those in trouble first.",
      columns: ["Sender", "State", "#Rank", "#Newest", "Delta by", "Full by"],
      rows: list(receiver.senders).map(object).map((peer) => ({
        level: text(peer.last_error) || !peer.connected ? "warn" : "", said: text(peer.last_error),
        cells: [text(peer.address), peer.connected ? "connected" : "not connected", number(peer.trainer_rank), version(peer.newest_version),
          text(peer.delta_source), text(peer.full_way)],
      })).sort((a, b) => (b.level !== "") - (a.level !== "")),
    }, {
      key: "engine", title: "Engine", empty: "No engine rank has attached.", columns: ["Engine rank", "State", "Runs", "Memory", "Client"],
      rows: list(receiver.engine_ranks).map(object).map((rank) => ({ level: rank.attached ? "" : "warn",
        cells: [String(number(rank.engine_rank)), rank.attached ? "attached" : "detached", rank.generating ? "generating" : "paused",
          list(rank.memory).map(text).join(" "), text(rank.client)] })),
    }]),
    ...(members.length > 0 ? [{
      key: "members", title: `Commit group ${text(receiver.group.group_id)}`, empty: "", ids: true, columns: ["Member", "State", "Engine", "#Version", "Round"],
      rows: members.map((member, i) => ({ level: member.connected ? "" : "warn", said: text(member.last_error), cells: [`${i} ${text(member.receiver_id)}`,
        member.connected ? "connected" : "not connected", member.attached ? "attached" : "not attached", version(member.live_version),
        member.staged ? "staged" : ""] })),
    }] : []),
    receiver.follower ? versionTable(history, ["#Apply", "#Pause"], (row) => [seconds(total(row.parts)), seconds(row.pause)])
      : versionTable(history, ["#Fetched", "#Changed", "#Took", "#Pause", "In full"], (row) => [bytes(row.bytes), percent(row.density),
        seconds(total(row.parts)), seconds(row.pause), row.density >= 0 ? (row.whole ? "some tensors" : "") : "all"]),
  ];
}
function receiverFacts(status, receiver) {
  const follower = object(receiver.follower);
  const scrub = number(receiver.scrub_age_seconds);
  // An engine that attaches never has the trainer's weights: its slices are no fault.
  const wrong = Object.entries(object(receiver.digest_mismatches)).filter(([source, slices]) => source !== "attach" && number(slices) > 0);
  const facts = receiver.follower ? [["Folder", text(follower.folder)], ["Checkpoint", text(follower.checkpoint)],
    ["Engine", text(follower.engine_url) || "none is controlled"]] : [
    ["Trainer's stream", `incarnation ${text(object(receiver.stream).incarnation) || "none"}`],
    ["Commits", `${text(receiver.commits)}, with repairs ${text(receiver.repairs)}, refused ${text(receiver.nacks)}`],
    ["Commit policy", text(receiver.commit_policy) || "that of the group's leader"],
    ["Bytes by source", list(receiver.sources).map(object).filter((source) => number(source.size_bytes) > 0)
      .map((source) => `${text(source.content)} by ${text(source.source)} ${bytes(number(source.size_bytes))}`).join(", ") || "none"],
    ["Staging", `${bytes(number(receiver.staging_bytes))} of ${bytes(number(receiver.staging_bytes_max))}`],
    ["Scrub", number(receiver.scrub_bytes_per_second_max) > 0 ? `${text(receiver.scrub_passes)} passes over live weights` +
      (scrub > 0 ? `, the last ended ${seconds(scrub)} ago` : "") : "off"],
    ["Slices that were not right", wrong.map(([source, slices]) => `${source} ${grouped(slices)}`).join(", ") || "none"],
  ];
  if (text(receiver.view)) facts.unshift(["View", receiver.view]);
  return [...facts, ...commonFacts(status)];
}
function receiverView(status) {
  const receiver = object(status.receiver);
  const history = receiverHistory(receiver);
  const problems = receiverProblems(status, receiver);
  const follows = receiver.follower !== undefined;
  const section = !receiver.stale ? SECTIONS.notReady : follows ? SECTIONS.folder : SECTIONS.stale;
  return {
    title: "dws-receiver", subtitle: `${text(receiver.receiver_id)}, job ${text(status.job_id)}`,
    verdict: verdict(status, problems, section), problems, figures: receiverFigures(receiver, history), history,
    plotsNote: "Since this process started.",
    plots: [
      { key: "bytes", title: "Bytes fetched", format: bytes, value: (row) => (follows ? NaN : row.bytes), whole: (row) => row.whole },
      { key: "density", title: "Elements changed", format: percent, value: (row) => row.density },
      { key: "pause", title: "Pause", format: seconds, value: (row) => (row.pause > 0 ? row.pause : NaN) },
      { key: "took", title: follows ? "Applying a version" : "Announcement to running", format: seconds, parts: (row) => row.parts,
        names: follows ? ["", "apply"] : ["fetch", "verify and stage", "commit", "", "wait"] },
    ],
    tables: receiverTables(receiver, history), facts: receiverFacts(status, receiver),
  };
}

// What the page shows of a status.
function viewOf(status) {
  return status.receiver ? receiverView(status) : senderView(status);
}
