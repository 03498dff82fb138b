"use strict";
// Starts the page, keeps it fresh, and switches language and colours.

(() => {
  const { h, show, byId, t, time, store, panels, decisions, chart } = Dash;
  const SECTIONS = ["overview", "gates", "namespaces", "trend", "decisions", "events", "cost", "trust", "attention", "nodes"];
  const REFRESH = 10_000;
  let status = window.CLUSTER_STATUS, unreachable = false, drawn = "", loading = false;

  // -- drawing -----------------------------------------------------------------------------------------------------

  function draw() {
    panels.banners(status, unreachable);
    freshness();
    byId("main").classList.toggle("no-data", !status);
    if (!status) return;
    byId("context").textContent = status.context || "";
    for (const name of ["cards", "gates", "namespaces", "events", "cost", "trust", "attention", "nodes"]) panels[name](status);
    chart.draw(byId("chart"), status.history, status.cost ? status.cost.currency : "USD");
    decisions.update(status);
    drawn = status.generatedAt;
  }

  function freshness() {
    const made = status ? Date.parse(status.generatedAt) : NaN, seconds = Math.max(0, Math.round((Date.now() - made) / 1000));
    const text = Number.isNaN(made) ? t("fresh.none") : seconds < 5 ? t("fresh.now") : seconds < 120 ? t("fresh.seconds", { n: seconds }) : seconds < 3600 ? t("fresh.minutes", { n: Math.floor(seconds / 60) }) : t("fresh.at", { time: time(status.generatedAt) });
    byId("fresh-text").textContent = text;
    byId("fresh").className = `fresh ${unreachable || !(seconds < 300) ? "old" : "live"}`;
    for (const node of document.querySelectorAll("[data-ends]")) node.textContent = panels.endsIn(node.dataset.ends);
  }

  function words() {
    Dash.translate(document);
    for (const language of ["en", "zh"]) byId(`lang-${language}`).setAttribute("aria-pressed", String(Dash.language === language));
    show(byId("nav"), SECTIONS.map((name) => h("a", { href: `#${name}`, text: t(`nav.${name}`) })));
    colours(store.get("theme") || "auto");
    draw();
    spy();
  }

  // -- colours -----------------------------------------------------------------------------------------------------

  const THEMES = { auto: ["light", "◐"], light: ["dark", "☀"], dark: ["auto", "☾"] };

  function colours(theme) {
    const known = Object.hasOwn(THEMES, theme) ? theme : "auto";
    if (known === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", known);
    const button = byId("theme");
    button.textContent = THEMES[known][1];
    button.setAttribute("aria-label", t(`theme.${known}`));
    button.title = t(`theme.${known}`);
    button.onclick = () => { store.set("theme", THEMES[known][0]); colours(THEMES[known][0]); };
  }

  const denied = () => ((status && status.decisions) || {}).deniedToday || 0;

  // -- staying fresh -----------------------------------------------------------------------------------------------

  /** The data is a script, because a page from disk may load scripts beside it but may not fetch. */
  function refresh() {
    if (loading || document.hidden) return;
    loading = true;
    const script = document.createElement("script");
    const done = (failed) => {
      script.remove();
      loading = false;
      if (failed !== unreachable || (!failed && window.CLUSTER_STATUS.generatedAt !== drawn)) {
        const before = denied();
        unreachable = failed;
        status = window.CLUSTER_STATUS || status;
        draw();
        if (denied() > before) byId("announce").textContent = t("announce.denied", { n: denied() });
      }
    };
    script.onload = () => done(false);
    script.onerror = () => done(Boolean(status));
    script.src = `cluster-status.js?at=${Date.now()}`;
    document.head.append(script);
  }

  // -- moving about ------------------------------------------------------------------------------------------------

  let observer = null;
  function spy() {
    if (observer) observer.disconnect();
    const links = new Map([...byId("nav").children].map((link) => [link.hash.slice(1), link]));
    observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const [name, link] of links) { if (name === entry.target.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); }
      }
    }, { rootMargin: "-10% 0px -80% 0px" });
    for (const name of SECTIONS) observer.observe(byId(name));
  }

  for (const language of ["en", "zh"]) byId(`lang-${language}`).addEventListener("click", () => { Dash.language = language; words(); });
  byId("namespace-filter").addEventListener("input", (event) => { panels.state.filter = event.target.value; if (status) panels.namespaces(status); });
  decisions.wire();
  words();
  setInterval(refresh, REFRESH);
  setInterval(freshness, 1_000);
  document.addEventListener("visibilitychange", refresh);
})();
