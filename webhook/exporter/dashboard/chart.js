"use strict";
// The 24-hour chart: three lanes over one time axis, each with its own scale, read by pointer or by arrow keys.

Dash.chart = (() => {
  const { h, svg, t, number, money, time, isNumber } = Dash;
  const WIDTH = 1000, LANE = 84, GAP = 30, TOP = 22, AXIS = 24, BUCKETS = 288;
  let at = null; // the bucket under the crosshair, kept between refreshes

  /** At most 288 buckets of five minutes: gauges keep their last value, counts add up. */
  function buckets(history) {
    const times = history.time || [];
    if (!times.length) return [];
    const end = times[times.length - 1], width = 86400 / BUCKETS;
    const found = new Map();
    times.forEach((moment, index) => {
      const slot = BUCKETS - 1 - Math.floor((end - moment) / width);
      if (slot < 0) return;
      const bucket = found.get(slot) || { slot, time: moment, requested: null, quota: null, idle: null, denied: 0, admitted: 0 };
      bucket.time = moment;
      if (isNumber(history.gpuRequested[index])) bucket.requested = history.gpuRequested[index];
      if (isNumber(history.gpuQuota[index])) bucket.quota = history.gpuQuota[index];
      if (isNumber(history.idleCostPerHour[index])) bucket.idle = history.idleCostPerHour[index];
      bucket.denied += history.denied[index] || 0;
      bucket.admitted += history.admitted[index] || 0;
      found.set(slot, bucket);
    });
    return [...found.values()].sort((one, other) => one.slot - other.slot);
  }

  const x = (slot) => ((slot + 0.5) / BUCKETS) * WIDTH;
  const top = (lane) => TOP + lane * (LANE + GAP);

  /** A round number not below the largest value. */
  function ceiling(values) {
    const largest = Math.max(0, ...values.filter(isNumber));
    if (!largest) return 1;
    const power = 10 ** Math.floor(Math.log10(largest));
    return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= largest);
  }

  /** Lines break where nothing was sampled for a quarter of an hour. */
  function path(points, lane, max, key) {
    let d = "", last = null;
    for (const point of points) {
      if (!isNumber(point[key])) continue;
      const y = top(lane) + LANE - (point[key] / max) * LANE;
      d += `${last !== null && point.slot - last <= 3 ? "L" : "M"}${x(point.slot).toFixed(1)},${y.toFixed(1)}`;
      last = point.slot;
    }
    return d;
  }

  function area(points, lane, max, key) {
    const floor = top(lane) + LANE;
    let d = "", run = [];
    const close = () => {
      if (run.length > 1) d += `M${x(run[0].slot).toFixed(1)},${floor}${run.map((p) => `L${x(p.slot).toFixed(1)},${(floor - (p[key] / max) * LANE).toFixed(1)}`).join("")}L${x(run[run.length - 1].slot).toFixed(1)},${floor}Z`;
      run = [];
    };
    for (const point of points) {
      if (!isNumber(point[key])) continue;
      if (run.length && point.slot - run[run.length - 1].slot > 3) close();
      run.push(point);
    }
    close();
    return d;
  }

  function frame(lane, max, label, printed) {
    const y = top(lane);
    return svg("g", null,
      svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }),
      svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y + LANE / 2, y2: y + LANE / 2 }),
      svg("line", { class: "floor", x1: 0, x2: WIDTH, y1: y + LANE, y2: y + LANE }));
  }

  function lanes(points, currency) {
    const requested = ceiling(points.flatMap((p) => [p.requested, p.quota]));
    const denied = ceiling(points.map((p) => p.denied)), idle = ceiling(points.map((p) => p.idle));
    return [
      { key: "requested", title: t("trend.requested"), max: requested, print: number, draw: [
        svg("path", { class: "fill accent", d: area(points, 0, requested, "requested") }),
        svg("path", { class: "line faint", d: path(points, 0, requested, "quota") }),
        svg("path", { class: "line accent", d: path(points, 0, requested, "requested") })] },
      { key: "denied", title: t("trend.denied"), max: denied, print: number, draw: points.filter((p) => p.denied > 0).map((p) =>
        svg("rect", { class: "tick", x: (x(p.slot) - 1.4).toFixed(1), width: 2.8, y: (top(1) + LANE - (p.denied / denied) * LANE).toFixed(1), height: ((p.denied / denied) * LANE).toFixed(1), rx: 1 })) },
      { key: "idle", title: t("trend.idle"), max: idle, print: (value) => money(value, currency), draw: [
        svg("path", { class: "fill warn", d: area(points, 2, idle, "idle") }),
        svg("path", { class: "line warn", d: path(points, 2, idle, "idle") })] },
    ];
  }

  function axis(points) {
    const end = points[points.length - 1];
    const endTime = end.time, y = top(2) + LANE;
    const labels = [];
    for (let hours = 24; hours >= 0; hours -= 4) {
      labels.push(h("span", { vars: { "--x": `${((24 - hours) / 24) * 100}%` }, text: time(endTime - hours * 3600).replace(/^.*?(\d\d:\d\d)$/, "$1") }));
    }
    return h("div", { class: "axis", "aria-hidden": "true" }, labels);
  }

  /** The hourly figures, for those who do not see the lines. */
  function asTable(points, currency) {
    const hours = new Map();
    for (const point of points) {
      const hour = Math.floor(point.time / 3600);
      const row = hours.get(hour) || { time: hour * 3600, requested: null, idle: null, denied: 0 };
      row.denied += point.denied;
      if (isNumber(point.requested)) row.requested = point.requested;
      if (isNumber(point.idle)) row.idle = point.idle;
      hours.set(hour, row);
    }
    return h("details", { class: "figures" }, h("summary", { text: t("trend.table") }), h("div", { class: "scroll" }, Dash.table(t("trend.title"), [
      { title: t("trend.hour"), cell: (row) => time(row.time) },
      { title: t("trend.requested"), class: "num", cell: (row) => number(row.requested) },
      { title: t("trend.denied"), class: "num", cell: (row) => number(row.denied) },
      { title: t("trend.idle"), class: "num", cell: (row) => money(row.idle, currency) },
    ], [...hours.values()].reverse())));
  }

  function draw(container, history, currency) {
    const points = buckets(history || {});
    if (!points.length) { Dash.show(container, Dash.empty(t("trend.none"))); return; }
    const all = lanes(points, currency), height = top(2) + LANE + 2;
    const cross = svg("line", { class: "cross", y1: TOP, y2: height, x1: -9, x2: -9 });
    const drawing = svg("svg", { class: "lanes", viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      all.map((lane, index) => [frame(index, lane.max), ...lane.draw]), cross);
    const readouts = all.map((lane, index) => h("div", { class: `lane-head ${lane.key}`, vars: { "--y": `${((top(index) - TOP) / height) * 100}%` } },
      h("span", { class: "lane-title", text: lane.title }), h("strong", { class: "lane-value" }), h("span", { class: "lane-max", text: lane.print(lane.max) })));
    const clock = h("span", { class: "lane-time" });
    const plot = h("div", { class: "plot", tabindex: 0, role: "slider", "data-key": "chart", "aria-label": t("trend.title"), "aria-valuemin": 0, "aria-valuemax": points.length - 1 }, drawing, readouts, clock);

    const select = (index) => {
      at = Math.max(0, Math.min(points.length - 1, index));
      const point = points[at], latest = at === points.length - 1;
      cross.setAttribute("x1", x(point.slot)); cross.setAttribute("x2", x(point.slot));
      const values = [`${number(point.requested)}${isNumber(point.quota) ? ` / ${number(point.quota)}` : ""}`, number(point.denied), money(point.idle, currency)];
      readouts.forEach((node, lane) => { node.querySelector(".lane-value").textContent = values[lane]; });
      clock.textContent = time(point.time);
      clock.style.setProperty("--x", `${(x(point.slot) / WIDTH) * 100}%`);
      plot.classList.toggle("latest", latest);
      plot.setAttribute("aria-valuenow", at);
      plot.setAttribute("aria-valuetext", `${time(point.time)}: ${all.map((lane, i) => `${lane.title} ${values[i]}`).join(", ")}`);
    };
    const nearest = (event) => {
      const box = drawing.getBoundingClientRect(), slot = ((event.clientX - box.left) / box.width) * BUCKETS;
      let best = 0;
      points.forEach((point, index) => { if (Math.abs(point.slot - slot) < Math.abs(points[best].slot - slot)) best = index; });
      return best;
    };
    plot.addEventListener("pointermove", (event) => select(nearest(event)));
    plot.addEventListener("pointerleave", () => select(points.length - 1));
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12, Home: -points.length, End: points.length }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      select(at + step);
    });
    const focused = document.activeElement && document.activeElement.getAttribute("data-key") === "chart";
    Dash.show(container, plot, axis(points), asTable(points, currency));
    select(focused && at !== null ? at : points.length - 1);
  }

  /** A row of thin bars for a card. */
  function spark(values) {
    const max = Math.max(1, ...values);
    return svg("svg", { class: "spark", viewBox: `0 0 ${values.length * 4} 24`, preserveAspectRatio: "none", "aria-hidden": "true" },
      values.map((value, index) => svg("rect", { x: index * 4, width: 3, rx: 1, y: 24 - Math.max(1.5, (value / max) * 24), height: Math.max(1.5, (value / max) * 24), class: value ? "on" : "off" })));
  }

  return { draw, spark, buckets };
})();
