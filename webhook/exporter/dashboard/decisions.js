"use strict";
// The decisions: a list with filters, and the whole record of one in a drawer.

Dash.decisions = (() => {
  const { h, show, byId, t, has, number, time, chip, empty, when, table, more } = Dash;
  const PAGE = 50;
  const state = { verdict: "", namespace: "", user: "", text: "", limit: PAGE };
  let records = [], total = 0, contact = "", texts = new WeakMap();

  const verdictOf = (record) => (record.would ? `would.${record.would}` : record.verdict);
  const TONE = { allow: "", patch: "info", deny: "bad", "would.deny": "warn", "would.patch": "info" };
  const nameOf = (record) => { const object = record.object || {}; return `${(object.kind || "").toLowerCase()}/${object.name || `${object.generateName || ""}*`}`; };
  const isRefusal = (record) => record.verdict === "deny" || record.would === "deny";

  /** The finding that a reader wants to see first. */
  function reason(record) {
    const findings = record.findings || [];
    return (isRefusal(record) && findings.find((finding) => has(`fix.${finding.code}`))) || findings[0];
  }

  function textOf(record) {
    if (!texts.has(record)) texts.set(record, JSON.stringify([record.id, record.object, record.user, record.policy && record.policy.rule, record.findings, record.warnings, record.uid]).toLowerCase());
    return texts.get(record);
  }

  function matches(record) {
    if (state.verdict === "deny" ? !isRefusal(record) : state.verdict && record.verdict !== state.verdict) return false;
    if (state.namespace && (record.object || {}).namespace !== state.namespace) return false;
    if (state.user && !String((record.user || {}).name || "").toLowerCase().includes(state.user)) return false;
    return !state.text || textOf(record).includes(state.text);
  }

  function update(status) {
    const decisions = status.decisions || {};
    records = Array.isArray(decisions.recent) ? decisions.recent : [];
    total = decisions.records || records.length;
    contact = (status.policy || {}).contact || "";
    draw();
  }

  function draw() {
    filters();
    const found = records.filter(matches), shown = found.slice(0, state.limit);
    byId("decisions-count").textContent = records.length ? t("decisions.count", { shown: number(found.length), n: number(records.length), total: number(total) }) : "";
    show(byId("decision-table"), !records.length ? empty(t("decisions.none")) : !found.length ? empty(t("decisions.nomatch")) : table(t("decisions.title"), [
      { title: t("decisions.object"), cell: (record) => [h("button", { type: "button", class: "link strong", "data-key": `record-${record.id}`, "aria-label": t("decisions.open", { id: record.id }), "aria-haspopup": "dialog", on: { click: (event) => { event.stopPropagation(); open(record); } }, text: nameOf(record) }), h("span", { class: "muted sub", text: (record.object || {}).namespace || "" })] },
      { title: t("decisions.verdict"), cell: (record) => [chip(t(`verdict.${verdictOf(record)}`), TONE[verdictOf(record)]), record.dryRun ? chip(t("record.dryrun")) : null] },
      { title: t("decisions.why"), class: "text", cell: (record) => { const finding = reason(record); return finding ? [h("span", { class: "code", text: finding.code }), " ", h("span", { text: finding.message })] : h("span", { class: "muted", text: "–" }); } },
      { title: t("decisions.by"), cell: (record) => person((record.user || {}).name) },
      { title: t("decisions.time"), class: "num", cell: (record) => when(record.time) },
    ], shown, { class: "stack clickable", row: (record) => ({ on: { click: (event) => { if (!event.target.closest("button, a, summary") && !String(getSelection())) open(record); } } }) }),
      shown.length < found.length ? more(t("decisions.more", { n: Math.min(PAGE, found.length - shown.length) }), "more-decisions", () => { state.limit += PAGE; draw(); }) : null);
  }

  /** Service accounts are long; namespace/name says as much. */
  function person(name) {
    const account = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(name || "");
    return h("span", { class: "user", title: name, text: account ? `${account[1]}/${account[2]}` : name || "–" });
  }

  // -- filters -----------------------------------------------------------------------------------------------------

  function filters() {
    show(byId("verdicts"), ["", "deny", "patch", "allow"].map((verdict) => h("button", { type: "button", "data-key": `verdict-${verdict}`, "aria-pressed": String(state.verdict === verdict), text: verdict ? t(`verdict.${verdict}`) : t("decisions.all"), on: { click: () => { state.verdict = verdict; state.limit = PAGE; draw(); } } })));
    const select = byId("filter-namespace");
    const names = [...new Set(records.map((record) => (record.object || {}).namespace).filter(Boolean))].sort();
    if (state.namespace && !names.includes(state.namespace)) names.push(state.namespace);
    const wanted = JSON.stringify([Dash.language, names]);
    if (select.dataset.names !== wanted) {
      select.dataset.names = wanted;
      select.replaceChildren(h("option", { value: "", text: t("decisions.anyNamespace") }), ...names.map((name) => h("option", { value: name, text: name })));
      select.value = state.namespace;
    }
  }

  function wire() {
    const form = byId("decision-filters");
    const read = () => { Object.assign(state, { namespace: byId("filter-namespace").value, user: byId("filter-user").value.trim().toLowerCase(), text: byId("filter-text").value.trim().toLowerCase(), limit: PAGE }); draw(); };
    form.addEventListener("input", read);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => { state.verdict = ""; read(); }));
    byId("drawer").addEventListener("click", (event) => { if (event.target === byId("drawer")) byId("drawer").close(); });
  }

  // -- one record --------------------------------------------------------------------------------------------------

  function openId(id) {
    const record = records.find((one) => one.id === id);
    if (record) { open(record); return; }
    byId("filter-text").value = id;
    byId("decision-filters").dispatchEvent(new Event("input"));
    byId("decisions").scrollIntoView();
    byId("filter-text").focus();
  }

  function open(record) {
    const drawer = byId("drawer");
    show(drawer, h("div", { class: "drawer-body" },
      h("header", null, h("div", null, h("p", { class: "muted", text: t("record.title", { id: record.id }) }), h("h2", { id: "drawer-title", text: nameOf(record) }), h("p", { class: "muted", text: (record.object || {}).namespace || "" })),
        h("button", { type: "button", class: "icon-button", "aria-label": t("record.close"), on: { click: () => drawer.close() }, text: "✕" })),
      h("p", { class: "chips" }, chip(t(`verdict.${verdictOf(record)}`), TONE[verdictOf(record)]), record.dryRun ? chip(t("record.dryrun")) : null, record.policy && record.policy.rule ? chip(record.policy.rule) : null, h("span", { class: "muted", text: time(record.time, true) })),
      part(t("record.fix"), fixes(record)), part(t("record.findings"), findingList(record.findings)),
      (record.warnings || []).length ? part(t("record.warnings"), h("ul", { class: "plain" }, record.warnings.map((warning) => h("li", { text: warning })))) : null,
      part(t("record.patch"), patchList(record.patch)), facts(record),
      h("details", { class: "raw" }, h("summary", { text: t("record.raw") }), record.shortened ? h("p", { class: "flag", text: t("record.shortened") }) : null, h("pre", { tabindex: 0, text: JSON.stringify(record, null, 2) }))));
    if (!drawer.open) drawer.showModal();
    drawer.scrollTop = 0;
  }

  const part = (title, content) => h("section", null, h("h3", { text: title }), content);

  function fixes(record) {
    if (!isRefusal(record)) return h("p", { class: "muted", text: t("record.nofix") });
    const known = (record.findings || []).filter((finding) => has(`fix.${finding.code}`)).map((finding) => t(`fix.${finding.code}`));
    return [record.message ? h("pre", { class: "denial", tabindex: 0, text: record.message }) : null, h("ul", { class: "fixes" }, [...new Set(known.length ? known : [t("fix.other")])].map((text) => h("li", { text })), contact ? h("li", { text: t("fix.contact", { contact }) }) : null)];
  }

  const findingList = (findings) => ((findings || []).length ? h("ul", { class: "findings" }, findings.map((finding) => h("li", null, chip(finding.code), h("span", { class: "pre", text: finding.message })))) : h("p", { class: "muted", text: "–" }));

  function patchList(patch) {
    if (!(patch || []).length) return h("p", { class: "muted", text: t("record.nopatch") });
    return h("ol", { class: "patch" }, patch.map((step) => h("li", null, h("span", { class: `op ${step.op}`, text: step.op }), h("code", { text: step.path }), step.value === undefined ? null : h("pre", { text: typeof step.value === "string" ? step.value : JSON.stringify(step.value, null, 2) }))));
  }

  function facts(record) {
    const amounts = (map) => Object.entries(map || {}).map(([resource, amount]) => `${amount} ${resource}`).join(", ");
    const user = record.user || {}, policy = record.policy || {};
    const rows = [["record.user", user.name], ["record.groups", (user.groups || []).join(", ")], ["record.operation", [record.operation, record.subResource].filter(Boolean).join(" ")], ["record.phase", record.phase],
      ["record.policy", [policy.name, String(policy.revision || "").replace("sha256:", "").slice(0, 12), policy.mode].filter(Boolean).join(" · ")], ["record.gpu", amounts(record.gpu)], ["record.asks", amounts(record.asks)], ["record.stream", record.stream ? `${record.stream} #${record.seq}` : ""], ["record.hash", record.hash]];
    return h("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([key, value]) => [h("dt", { text: t(key) }), h("dd", { text: value })]));
  }

  return { update, draw, wire, openId };
})();
