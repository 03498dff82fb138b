"use strict";
// Everything but the decisions: each function draws one section from the status object.

Dash.panels = (() => {
  const { h, show, byId, t, why, number, percent, money, time, duration, chip, empty, when, table, more, isNumber } = Dash;
  const list = (value) => (Array.isArray(value) ? value : []);
  const state = { gate: null, filter: "", sort: "namespace", descending: false, allNamespaces: false, events: 20 };
  const PAGE = 50;

  // -- banners and cards -------------------------------------------------------------------------------------------

  function banners(status, unreachable) {
    const found = [];
    if (!status) return show(byId("banners"), h("p", { class: "banner", text: t("banner.none") }));
    const made = time(status.generatedAt, true), age = (Date.now() - Date.parse(status.generatedAt)) / 1000;
    const live = status.context !== "snapshot";
    if (unreachable) found.push(["warn", t("banner.unreachable", { time: made })]);
    else if (live && age > 300) found.push(["warn", t("banner.stale", { time: made })]);
    const policy = status.policy || {};
    if (policy.error) found.push(["bad", t("banner.policy", { error: policy.error })]);
    const problems = list(status.problems);
    if (problems.length) found.push(["warn", t("banner.facts", { age: duration(status.factsAgeSeconds || 0), problem: problems[0] })]);
    const bad = list(status.streams).filter((stream) => stream.state === "bad").length;
    if (bad) found.push(["bad", t("banner.bad", { n: bad })]);
    return show(byId("banners"), found.map(([tone, text]) => h("p", { class: `banner ${tone}`, role: tone === "bad" ? "alert" : null, text })));
  }

  function cards(status) {
    const { summary, gates, decisions, cost } = status;
    const stuck = Object.fromEntries(list(gates).map((gate) => [gate.gate, gate.stuck]));
    const currency = cost ? cost.currency : "USD";
    const share = summary.gpuQuota ? summary.gpuRequested / summary.gpuQuota : 0;
    const unknown = cost ? list(cost.byNamespace).reduce((sum, row) => sum + (row.utilisation === "unknown" ? row.gpus + row.pendingGpus : 0), 0) : 0;
    const idleNote = !cost || cost.total.utilisation === "unknown" ? t("card.idle.upper") : unknown ? t("card.idle.partial", { n: number(unknown) }) : t("card.idle.known", { price: money(cost.defaultPerGpuHour, currency) });
    const audited = decisions && (decisions.records || list(status.streams).length);
    show(byId("cards"),
      card("requested", t("card.requested"), number(summary.gpuRequested), summary.gpuQuota ? t("card.requested.of", { quota: number(summary.gpuQuota) }) : t("card.requested.none"),
        h("div", { class: "bar", "aria-hidden": "true" }, h("span", { class: `used ${share >= 1 ? "full" : ""}`, vars: { "--w": `${Math.min(100, share * 100)}%` } }))),
      card("pending", t("card.pending"), number(summary.pendingPods), summary.pendingPods ? t("card.pending.note", { pool: stuck.pool || 0, capacity: stuck.capacity || 0 }) : t("card.pending.none"),
        h("div", { class: "split", "aria-hidden": "true" }, ["pool", "capacity"].map((gate) => stuck[gate] ? h("span", { class: gate, vars: { "--n": stuck[gate] } }) : null))),
      card("denied", t("card.denied"), audited ? number(decisions.deniedToday) : "–", audited ? t("card.denied.note", { admitted: number(decisions.admittedToday) }) : t("card.denied.none"),
        Dash.chart.spark(perHour(status.history))),
      card("idle", t("card.idle"), money(summary.estimatedIdleCostPerHour, currency), idleNote, idleBar(cost)));
  }

  const card = (name, title, value, note, extra) => h("article", { class: `card ${name}` }, h("h2", { text: title }), h("p", { class: "value", text: value }), h("p", { class: "note", text: note }), extra);

  function perHour(history) {
    const hours = new Array(24).fill(0);
    const times = list(history && history.time);
    if (times.length) {
      const end = times[times.length - 1];
      times.forEach((moment, index) => { const hour = 23 - Math.floor((end - moment) / 3600); if (hour >= 0) hours[hour] += history.denied[index] || 0; });
    }
    return hours;
  }

  function idleBar(cost) {
    if (!cost) return null;
    const total = cost.total, idle = isNumber(total.idlePerHour) ? total.idlePerHour : 0;
    const parts = [["busy", Math.max(0, total.allocatedPerHour - idle - total.unknownPerHour)], ["idle", idle], ["unknown", total.unknownPerHour], ["pending", total.pendingPerHour]];
    return h("div", { class: "split cost", "aria-hidden": "true" }, parts.map(([name, amount]) => amount > 0 ? h("span", { class: name, vars: { "--n": amount } }) : null));
  }

  // -- gates -------------------------------------------------------------------------------------------------------

  function gates(status) {
    const all = list(status.gates);
    if (!all.length) return;
    if (!state.gate) state.gate = (all.find((gate) => gate.gate !== "running" && gate.stuck) || all[all.length - 1]).gate;
    const choose = (name) => { state.gate = name; gates(status); byId(`gate-${name}`).focus(); };
    const move = (event, index) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(all[(index + step + all.length) % all.length].gate);
    };
    const most = Math.max(1, ...all.map((gate) => gate.stuck));
    show(byId("gate-tabs"), all.map((gate, index) => {
      const running = gate.gate === "running", selected = gate.gate === state.gate;
      const tone = running ? "ok" : gate.stuck ? "stuck" : "clear";
      const says = running ? t("gate.runs", { n: number(gate.stuck) }) : gate.stuck ? t("gate.stuck", { n: number(gate.stuck) }) : t("gate.clear");
      return h("button", { type: "button", role: "tab", id: `gate-${gate.gate}`, "data-key": `gate-${gate.gate}`, class: `gate ${tone}`, "aria-selected": String(selected), "aria-controls": "gate-panel", tabindex: selected ? 0 : -1,
        vars: { "--share": gate.stuck / most }, on: { click: () => choose(gate.gate), keydown: (event) => move(event, index) } },
        h("span", { class: "gate-number", text: gate.number, "aria-hidden": "true" }), h("span", { class: "gate-name", text: t(`gate.${gate.gate}`) }),
        h("span", { class: "gate-count", text: running || gate.stuck ? number(gate.stuck) : "0" }), h("span", { class: "gate-says", text: says }),
        h("span", { class: "gate-fill", "aria-hidden": "true" }));
    }));
    const gate = all.find((one) => one.gate === state.gate) || all[0];
    byId("gate-panel").setAttribute("aria-labelledby", `gate-${gate.gate}`);
    show(byId("gate-panel"), h("p", { class: "about" }, t(`gate.${gate.gate}.about`), " ", gate.occurrences ? h("span", { class: "muted", text: t("gate.seen", { n: number(gate.occurrences) }) }) : null), gateItems(gate));
  }

  function gateItems(gate) {
    if (gate.gate === "running") return h("p", { class: "empty", text: gate.stuck ? t("gate.running.some", { n: number(gate.stuck), gpus: number(gate.gpus) }) : t("gate.running.none") });
    const items = list(gate.items);
    if (!items.length) return empty(t("gate.none"));
    return [h("ul", { class: "stuck-list" }, items.map((item) => h("li", null,
      h("div", { class: "stuck-head" }, h("strong", { text: item.object }), h("span", { class: "muted", text: item.namespace }),
        item.refusedAtApply ? chip(t("gate.refused"), "bad") : null, item.missingPods ? chip(t("gate.lacking", { n: item.missingPods }), "warn") : null,
        item.gpus ? chip(t("gate.gpus", { n: number(item.gpus) })) : null),
      h("p", { class: "why", text: why(item) }),
      h("p", { class: "meta" }, item.since ? h("time", { datetime: item.since, title: time(item.since, true), text: t("gate.since", { time: time(item.since) }) }) : null,
        item.decision ? h("button", { type: "button", class: "link", "data-key": `decision-${item.object}`, on: { click: () => Dash.decisions.openId(item.decision.id) }, text: t("gate.decision", { id: item.decision.id }) }) : null)))),
      gate.stuck > items.length ? h("p", { class: "muted pad", text: t("gate.more", { n: gate.stuck - items.length }) }) : null];
  }

  // -- namespaces --------------------------------------------------------------------------------------------------

  const COLUMNS = [
    { key: "namespace", title: "namespaces.namespace", value: (team) => team.namespace },
    { key: "team", title: "namespaces.team", value: (team) => team.team },
    { key: "gpus", title: "namespaces.gpus", value: (team) => (team.gpuQuota ? team.gpuRequested / team.gpuQuota : -1), class: "wide" },
    { key: "used", title: "namespaces.used", value: (team) => team.gpuRequested, class: "num" },
    { key: "pending", title: "namespaces.pending", value: (team) => team.pendingPods, class: "num" },
    { key: "pods", title: "namespaces.pods", value: (team) => team.pods, class: "num" },
    { key: "cpu", title: "namespaces.cpu", value: (team) => team.cpuRequested, class: "num low" },
    { key: "memory", title: "namespaces.memory", value: (team) => team.memoryRequestedGi, class: "num low" },
  ];

  function namespaces(status) {
    const container = byId("namespace-table"), teams = list(status.teams);
    if (!teams.length) { show(container, empty(t("namespaces.none"))); show(byId("namespace-legend")); return; }
    const wanted = state.filter.trim().toLowerCase();
    const rows = teams.filter((team) => !wanted || `${team.namespace} ${team.team}`.toLowerCase().includes(wanted));
    const column = COLUMNS.find((one) => one.key === state.sort);
    rows.sort((one, other) => {
      const [a, b] = [column.value(one), column.value(other)];
      const order = typeof a === "string" ? a.localeCompare(b) : a - b;
      return (state.descending ? -order : order) || one.namespace.localeCompare(other.namespace);
    });
    const shown = state.allNamespaces ? rows : rows.slice(0, PAGE);
    const columns = COLUMNS.map((one) => ({ ...one, title: t(one.title), sorted: one.key === state.sort ? (state.descending ? "descending" : "ascending") : "none", head: () => sorter(one, status), cell: (team) => teamCell(one.key, team) }));
    show(container, rows.length ? table(t("namespaces.title"), columns, shown, { class: "stack" }) : empty(t("namespaces.nomatch")),
      shown.length < rows.length ? more(t("namespaces.more", { n: rows.length }), "more-namespaces", () => { state.allNamespaces = true; namespaces(status); }) : null);
    show(byId("namespace-legend"), ["used", "committed", "free"].map((part) => h("span", { class: `key ${part}`, text: t(`legend.${part}`) })));
  }

  function sorter(column, status) {
    const active = column.key === state.sort;
    return h("button", { type: "button", class: `sort ${active ? (state.descending ? "down" : "up") : ""}`, "data-key": `sort-${column.key}`, text: t(column.title), on: { click: () => {
      state.descending = active ? !state.descending : typeof column.value({ namespace: "", team: "" }) !== "string";
      state.sort = column.key;
      namespaces(status);
    } } });
  }

  function teamCell(key, team) {
    if (key === "namespace") return team.namespace;
    if (key === "team") return chip(team.team || "–");
    if (key === "gpus") return quotaBar(team);
    if (key === "used") return team.hasGpuQuota === false ? number(team.gpuRequested) : t("namespaces.of", { used: number(team.gpuRequested), hard: number(team.gpuQuota) });
    if (key === "pending") return team.pendingPods ? chip(number(team.pendingPods), "warn") : h("span", { class: "muted", text: "0" });
    if (key === "pods") return number(team.pods);
    if (key === "cpu") return team.cpuQuota ? t("namespaces.of", { used: number(team.cpuRequested), hard: number(team.cpuQuota) }) : number(team.cpuRequested);
    return team.memoryQuotaGi ? t("namespaces.of", { used: number(team.memoryRequestedGi), hard: number(team.memoryQuotaGi) }) : number(team.memoryRequestedGi);
  }

  function quotaBar(team) {
    const used = team.gpuRequested, committed = team.gpuCommitted || 0;
    const extra = list(team.gpus).filter((row) => row.resource !== "nvidia.com/gpu").map((row) => h("span", { class: "slice", text: `${row.resource} ${number(row.used)}${isNumber(row.hard) ? ` / ${number(row.hard)}` : ""}` }));
    if (team.hasGpuQuota === false) return [h("span", { class: "muted", title: t("namespaces.bar.unlimited", { used, committed }), text: t("namespaces.unlimited") }), extra];
    const hard = team.gpuQuota, whole = Math.max(hard, used + committed, 1), free = Math.max(0, hard - used - committed);
    const label = t("namespaces.bar", { used: number(used), hard: number(hard), committed: number(committed), free: number(free) });
    return [h("div", { class: `bar ${used + committed > hard ? "over" : ""}`, role: "img", "aria-label": label, title: label },
      h("span", { class: `used ${used >= hard ? "full" : ""}`, vars: { "--w": `${(used / whole) * 100}%` } }),
      h("span", { class: "committed", vars: { "--w": `${(committed / whole) * 100}%` } }),
      used + committed > hard ? h("span", { class: "limit", vars: { "--x": `${(hard / whole) * 100}%` } }) : null), extra];
  }

  // -- events ------------------------------------------------------------------------------------------------------

  /** The same object stopped for the same reason is one row: times add up, the newest message stands. */
  function grouped(all) {
    const rows = new Map();
    for (const event of all) {
      const key = JSON.stringify([event.namespace, event.object, event.why || event.message]);
      const row = rows.get(key);
      if (row) row.occurrences += event.occurrences || 1;
      else rows.set(key, { ...event, occurrences: event.occurrences || 1 });
    }
    return [...rows.values()];
  }

  function events(status) {
    const all = grouped(list(status.events)), { summary } = status;
    byId("events-count").textContent = all.length ? t("events.count", { scheduling: number(summary.failedSchedulingEvents), create: number(summary.failedCreateEvents) }) : "";
    const shown = all.slice(0, state.events);
    show(byId("event-table"), all.length ? table(t("events.title"), [
      { title: t("events.object"), cell: (event) => [h("span", { class: "object", text: event.object }), h("span", { class: "muted sub", text: event.namespace })] },
      { title: t("events.gate"), cell: (event) => (event.gate ? chip(t(`gate.${event.gate}`), event.gate) : chip(event.reason)) },
      { title: t("events.why"), class: "text", cell: (event) => [h("span", { text: why(event) || event.message }), event.why ? h("details", null, h("summary", { text: t("events.message") }), h("p", { class: "mono", text: event.message })) : null] },
      { title: t("events.times"), class: "num", cell: (event) => number(event.occurrences) },
      { title: t("events.when"), class: "num", cell: (event) => when(event.lastTimestamp) },
    ], shown, { class: "stack" }) : empty(t("events.none")),
      shown.length < all.length ? more(t("events.more", { n: Math.min(50, all.length - shown.length) }), "more-events", () => { state.events += 50; events(status); }) : null);
  }

  // -- cost --------------------------------------------------------------------------------------------------------

  function cost(status) {
    const data = status.cost;
    if (!data) { show(byId("cost-panels"), empty(t("cost.none"))); return; }
    const amount = (value) => money(value, data.currency);
    byId("cost-lead").textContent = t("cost.lead", { allocated: amount(data.total.allocatedPerHour), pending: amount(data.total.pendingPerHour) });
    show(byId("cost-panels"), [["byTeam", data.byTeam], ["byGpuType", data.byGpuType], ["byPool", data.byPool]].map(([name, rows]) => costPanel(name, list(rows), amount)));
    show(byId("cost-flags"), list(data.flags).map((flag) => h("p", { class: "flag", text: why(flag) })));
  }

  function costPanel(name, rows, amount) {
    const most = Math.max(1e-9, ...rows.map((row) => row.allocatedPerHour + row.pendingPerHour));
    const body = rows.map((row) => {
      const idle = isNumber(row.idlePerHour) ? row.idlePerHour : 0, total = row.allocatedPerHour + row.pendingPerHour;
      const parts = [["busy", Math.max(0, row.allocatedPerHour - idle - row.unknownPerHour)], ["idle", idle], ["unknown", row.unknownPerHour], ["pending", row.pendingPerHour]].filter(([, value]) => value > 0.004);
      const words = parts.map(([part, value]) => `${t(`cost.${part}`)} ${amount(value)}`).join(" · ");
      return h("li", null, h("div", { class: "cost-head" }, h("strong", { text: row.name || t("cost.unnamed") }), h("span", { class: "muted", text: `${number(row.gpus + row.pendingGpus)} GPU${isNumber(row.utilisation) ? ` · ${t("cost.busy.share", { share: percent(row.utilisation) })}` : ""}` }), h("span", { class: "amount", text: t("cost.perHour", { amount: amount(total) }) })),
        h("div", { class: "split cost scaled", "aria-hidden": "true", vars: { "--w": `${(total / most) * 100}%` } }, parts.map(([part, value]) => h("span", { class: part, vars: { "--n": value } }))),
        h("p", { class: "meta", text: words }));
    });
    return h("div", { class: "panel" }, h("h3", { text: t(`cost.${name}`) }), body.length ? h("ul", { class: "costs" }, body) : empty(t("cost.none")));
  }

  // -- trust -------------------------------------------------------------------------------------------------------

  const STATE_TONE = { intact: "ok", open: "ok", unclosed: "", gap: "warn", bad: "bad" };

  function trust(status) {
    show(byId("trust-panels"), h("div", { class: "panel span" }, h("h3", { text: t("trust.streams") }), streams(status)), policyPanel(status.policy || {}), missingPanel(status));
  }

  function streams(status) {
    const all = list(status.streams);
    if (!all.length) return empty(t("trust.streams.none"));
    const shown = all.slice(0, 12);
    return [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("trust.streams") }, table(t("trust.streams"), [
      { title: t("trust.stream"), cell: (stream) => h("span", { class: "mono", text: stream.stream }) },
      { title: t("trust.state"), cell: (stream) => [chip(Dash.has(`state.${stream.state}`) ? t(`state.${stream.state}`) : stream.state, STATE_TONE[stream.state]), stream.problem ? h("span", { class: "sub bad-text", text: stream.problem }) : null] },
      { title: t("trust.records"), class: "num", cell: (stream) => number(stream.records) },
      { title: t("trust.lastRecord"), class: "num", cell: (stream) => when(stream.lastTime) },
    ], shown)), all.length > shown.length ? h("p", { class: "muted pad", text: t("trust.older", { n: all.length - shown.length }) }) : null];
  }

  function policyPanel(policy) {
    const short = (revision) => String(revision || "").replace("sha256:", "").slice(0, 12) || "–";
    const differs = policy.recordedRevision && policy.revision && policy.recordedRevision !== policy.revision;
    return h("div", { class: "panel" }, h("h3", null, t("trust.policy"), " ", policy.name ? h("span", { class: "muted", text: policy.name }) : null, chip(policy.error ? t("trust.policy.failed") : t("trust.policy.loaded"), policy.error ? "bad" : "ok")),
      h("dl", { class: "facts" }, h("dt", { text: t("trust.policy.revision") }), h("dd", { class: "mono", title: policy.revision, text: short(policy.revision) }), h("dt", { text: t("trust.policy.mode") }), h("dd", { text: policy.mode || "–" })),
      differs ? h("p", { class: "flag", text: t("trust.policy.differs", { revision: short(policy.recordedRevision) }) }) : null,
      list(policy.rules).length ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("trust.rule") }, table(t("trust.policy"), [
        { title: t("trust.rule"), cell: (rule) => [rule.name, rule.mode !== "enforce" ? chip(rule.mode, "warn") : null] },
        { title: t("trust.rule.pools"), cell: (rule) => list(rule.pools).join(", ") || "–" },
        { title: t("trust.rule.class"), cell: (rule) => rule.priorityClassName || "–" },
        { title: t("trust.rule.namespaces"), class: "num", cell: (rule) => number(rule.namespaces) },
      ], list(policy.rules))) : null);
  }

  function missingPanel(status) {
    const missing = (status.decisions || {}).missing || { checked: false, pods: [] };
    const content = !missing.checked ? empty(t("trust.missing.unchecked")) : missing.count === 0 ? empty(t("trust.missing.none"))
      : [h("p", { class: "flag bad", text: t("trust.missing.some", { n: number(missing.count), from: time(missing.from), to: time(missing.to) }) }), names(missing.pods.map((pod) => [pod.pod, pod.namespace, pod.created]), missing.count)];
    return h("div", { class: "panel" }, h("h3", { text: t("trust.missing") }), content, missing.beforeFirstRecord ? h("p", { class: "muted pad", text: t("trust.missing.before", { n: number(missing.beforeFirstRecord) }) }) : null);
  }

  const names = (rows, count) => [h("ul", { class: "names" }, rows.slice(0, 8).map(([name, namespace, moment]) => h("li", null, h("strong", { text: name }), h("span", { class: "muted", text: namespace }), h("span", { class: "amount muted" }, when(moment))))),
    count > 8 ? h("p", { class: "muted pad", text: t("gate.more", { n: number(count - 8) }) }) : null];

  // -- attention ---------------------------------------------------------------------------------------------------

  function attention(status) {
    const decisions = status.decisions || {}, outside = list(status.outsidePolicy), findings = list(status.findings);
    show(byId("attention-panels"),
      h("div", { class: "pile" }, h("div", { class: "panel" }, h("h3", { text: t("attention.exceptions") }), exceptions((status.policy || {}).exceptions || {})),
        h("div", { class: "panel" }, h("h3", { text: t("attention.outside") }), outside.length ? names(outside.map((pod) => [pod.pod, pod.namespace, pod.since]), outside.length) : empty(t("attention.outside.none")))),
      h("div", { class: "panel" }, h("h3", { text: t("attention.refusals") }), refusals(decisions)),
      h("div", { class: "panel" }, h("h3", { text: t("attention.findings") }), findings.length ? h("ul", { class: "findings" }, findings.slice(0, 12).map((finding) => h("li", null, chip(finding.code, "warn"), h("span", null, finding.namespace ? h("strong", { text: `${finding.namespace} ` }) : null, Dash.language === "zh" ? finding.messageZh || finding.message : finding.message)))) : empty(t("attention.findings.none")),
        findings.length > 12 ? h("p", { class: "muted pad", text: t("gate.more", { n: findings.length - 12 }) }) : null));
  }

  function exceptions(data) {
    const entries = list(data.entries).filter((entry) => entry.active).map((entry) => ({ label: entry.name, kind: "exemption", ends: entry.expires, detail: [entry.reason, list(entry.who).concat(list(entry.namespaces)).join(", ")].filter(Boolean).join(" · ") }));
    const workloads = list(data.workloads).filter((one) => one.active).map((one) => ({ label: one.object, kind: one.kind, ends: one.ends, detail: [one.namespace, one.name ? t("attention.carries", { name: one.name }) : ""].filter(Boolean).join(" · ") }));
    const all = [...workloads, ...entries].sort((one, other) => (one.ends || "9").localeCompare(other.ends || "9"));
    if (!all.length) return empty(t("attention.exceptions.none"));
    return h("ul", { class: "names" }, all.slice(0, 12).map((one) => h("li", null, h("strong", { text: one.label }), chip(t(`attention.${one.kind}`), one.kind === "breakGlass" ? "bad" : "warn"),
      h("span", { class: "amount" }, countdown(one.ends)), one.detail ? h("span", { class: "sub muted", text: one.detail }) : null)));
  }

  const countdown = (ends) => h("span", { class: ends ? "countdown" : "muted", "data-ends": ends, title: ends ? time(ends, true) : null, text: endsIn(ends) });

  function endsIn(ends) {
    if (!ends) return t("attention.never");
    const left = (Date.parse(ends) - Date.now()) / 1000;
    if (!(left > 0)) return t("attention.ended");
    const two = (value) => String(Math.floor(value)).padStart(2, "0");
    const clock = `${Math.floor(left / 3600)}:${two((left / 60) % 60)}:${two(left % 60)}`;
    return t("attention.ends", { time: left < 86400 ? clock : duration(left) });
  }

  function refusals(decisions) {
    const workloads = list(decisions.refusedWorkloads).slice(0, 6), users = list(decisions.refusedUsers).slice(0, 4);
    if (!workloads.length && !users.length) return empty(t("attention.refusals.none"));
    return [h("ul", { class: "names" }, workloads.map((one) => h("li", null,
      one.id ? h("button", { type: "button", class: "link strong", "data-key": `refused-${one.namespace}-${one.name}`, on: { click: () => Dash.decisions.openId(one.id) }, text: `${one.kind.toLowerCase()}/${one.name}` }) : h("strong", { text: one.name }),
      h("span", { class: "muted", text: one.namespace }), h("span", { class: "amount", text: `${number(one.count)} ×` }), one.message ? h("span", { class: "sub muted", text: one.message }) : null))),
      users.length ? h("p", { class: "users" }, users.map((user) => h("span", { class: "chip", text: `${user.name} · ${number(user.count)}` }))) : null];
  }

  // -- nodes -------------------------------------------------------------------------------------------------------

  function nodes(status) {
    const all = list(status.nodes);
    byId("nodes-count").textContent = all.length ? t("nodes.count", { n: number(all.length), gpus: number(all.reduce((sum, node) => sum + Number(node.allocatableGpu || 0), 0)) }) : "";
    show(byId("node-table"), all.length ? table(t("nodes.title"), [
      { title: t("nodes.name"), cell: (node) => node.name },
      { title: t("nodes.state"), cell: (node) => (!node.ready ? chip(t("nodes.notready"), "bad") : node.schedulable === false ? chip(t("nodes.cordoned"), "warn") : chip(t("nodes.ready"), "ok")) },
      { title: t("nodes.pool"), cell: (node) => node.pool || "–" },
      { title: t("nodes.accelerator"), cell: (node) => node.accelerator || "–" },
      { title: t("nodes.zone"), cell: (node) => node.zone || "–" },
      { title: t("nodes.gpus"), class: "num", cell: (node) => Object.entries(node.gpus || { "nvidia.com/gpu": node.allocatableGpu }).map(([resource, amount]) => `${amount} ${resource}`).join(", ") || "0" },
    ], all.slice(0, 200), { class: "stack" }) : empty(t("nodes.none")));
  }

  return { banners, cards, gates, namespaces, events, cost, trust, attention, nodes, endsIn, state };
})();
