"use strict";
// Elements, words and numbers. Data reaches the page as text nodes and attributes only, never as markup.

window.Dash = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const store = {
    get(key) { try { return localStorage.getItem(`gpu-dashboard.${key}`); } catch { return null; } },
    set(key, value) { try { localStorage.setItem(`gpu-dashboard.${key}`, value); } catch { /* private mode */ } },
  };
  let language = store.get("language") || (/^zh\b/i.test(navigator.language || "") ? "zh" : "en");

  // -- elements ----------------------------------------------------------------------------------------------------

  /** An element: `props` are attributes, but for class, text, on (listeners) and vars (CSS custom properties). */
  function h(tag, props, ...children) {
    return fill(document.createElement(tag), props, children);
  }

  function svg(tag, props, ...children) {
    return fill(document.createElementNS(SVG, tag), props, children);
  }

  function fill(node, props, children) {
    for (const [name, value] of Object.entries(props || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "class") node.setAttribute("class", value);
      else if (name === "text") node.textContent = value;
      else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
      else if (name === "vars") for (const [key, amount] of Object.entries(value)) node.style.setProperty(key, amount);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) node.append(child);
    }
    return node;
  }

  const byId = (id) => document.getElementById(id);

  /** Replace what a container shows, but keep the focus on what has the same data-key. */
  function show(container, ...children) {
    const active = document.activeElement;
    const key = active && container.contains(active) ? active.getAttribute("data-key") : null;
    const fragment = document.createDocumentFragment();
    fill(fragment, null, children);
    container.replaceChildren(fragment);
    if (key === null) return;
    for (const node of container.querySelectorAll("[data-key]")) {
      if (node.getAttribute("data-key") === key) { node.focus({ preventScroll: true }); return; }
    }
  }

  // -- words -------------------------------------------------------------------------------------------------------

  function t(key, values) {
    const words = (window.STRINGS || {})[language] || {};
    const text = Object.hasOwn(words, key) ? words[key] : key;
    return values ? text.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(values, name) ? String(values[name]) : whole)) : text;
  }

  const has = (key) => Object.hasOwn((window.STRINGS || {})[language] || {}, key);

  /** The sentence that came with the data, in the page's language. */
  const why = (item) => (language === "zh" ? item.whyZh : item.why) || item.why || "";

  function translate(root) {
    for (const node of root.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
    for (const node of root.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
    for (const node of root.querySelectorAll("[data-placeholder]")) node.placeholder = t(node.dataset.placeholder);
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
    document.title = t("title");
  }

  // -- numbers and times -------------------------------------------------------------------------------------------

  const locale = () => (language === "zh" ? "zh-CN" : "en-GB");
  const formats = new Map();
  function format(kind, options, value) {
    const key = `${kind.name} ${locale()} ${JSON.stringify(options)}`;
    if (!formats.has(key)) formats.set(key, new kind(locale(), options));
    return formats.get(key).format(value);
  }

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const number = (value) => (isNumber(value) ? format(Intl.NumberFormat, { maximumFractionDigits: 2 }, value) : "–");
  const percent = (value) => (isNumber(value) ? format(Intl.NumberFormat, { style: "percent" }, value) : "–");

  function money(value, currency) {
    if (!isNumber(value)) return "–";
    const digits = Math.abs(value) >= 1000 || Number.isInteger(value) ? 0 : 2;
    const options = { style: "currency", currency, currencyDisplay: "narrowSymbol", minimumFractionDigits: digits, maximumFractionDigits: digits };
    try { return format(Intl.NumberFormat, options, value); } catch { return `${number(value)} ${currency}`; }
  }

  function time(text, full) {
    const moment = typeof text === "number" ? new Date(text * 1000) : new Date(text || NaN);
    if (Number.isNaN(moment.getTime())) return text ? String(text) : "–";
    const today = new Date().toDateString() === moment.toDateString();
    const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    if (full) return format(Intl.DateTimeFormat, { dateStyle: "medium", timeStyle: "medium" }, moment);
    return format(Intl.DateTimeFormat, today ? clock : { ...clock, month: "short", day: "numeric" }, moment);
  }

  function duration(seconds) {
    const unit = seconds >= 172800 ? ["day", 86400] : seconds >= 7200 ? ["hour", 3600] : seconds >= 120 ? ["minute", 60] : ["second", 1];
    return format(Intl.NumberFormat, { style: "unit", unit: unit[0], unitDisplay: "short", maximumFractionDigits: 0 }, Math.floor(seconds / unit[1]));
  }

  // -- small parts -------------------------------------------------------------------------------------------------

  const chip = (text, tone) => h("span", { class: `chip ${tone || ""}`, text });
  const empty = (text) => h("p", { class: "empty", text });
  const when = (text) => (text ? h("time", { datetime: text, title: time(text, true), text: time(text) }) : "–");

  /** A table: columns are {key, title, class?, cell(row)}; the first cell of a row is its header. */
  function table(caption, columns, rows, options = {}) {
    const head = columns.map((column) => h("th", { scope: "col", class: column.class, "aria-sort": column.sorted }, column.head ? column.head() : column.title));
    const body = rows.map((row) => h("tr", options.row ? options.row(row) : null, columns.map((column, index) =>
      h(index === 0 && !options.plain ? "th" : "td", { scope: index === 0 && !options.plain ? "row" : null, class: column.class, "data-title": column.title }, column.cell(row)))));
    return h("table", { class: options.class }, h("caption", { class: "hidden", text: caption }), h("thead", null, h("tr", null, head)), h("tbody", null, body));
  }

  /** The tail of a long list: a button that shows more of it. */
  const more = (text, key, listener) => h("div", { class: "more" }, h("button", { type: "button", class: "quiet", "data-key": key, on: { click: listener }, text }));

  return {
    h, svg, show, byId, t, has, why, translate, number, percent, money, time, duration, chip, empty, when, table, more, isNumber, store,
    get language() { return language; },
    set language(value) { language = value; store.set("language", value); },
  };
})();
