// Refreshes the page while somebody looks, and draws charts. Without it the page works too.
"use strict";
(function () {
  const every = 2000;
  let live = true;

  const button = document.getElementById("updates");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      live = !live;
      button.setAttribute("aria-pressed", String(live));
      if (live) refresh();
    });
  }

  function refresh() {
    const region = document.getElementById("live");
    if (document.hidden || !region || !region.hasAttribute("hx-get") || stopped(region)) return;
    window.htmx.trigger(region, "refresh");
  }

  // Whether somebody has stopped the updates, or has marked a text, which would be lost.
  function stopped(region) {
    const marked = document.getSelection();
    return !live || marked && !marked.isCollapsed && region.contains(marked.anchorNode);
  }

  // A request ends before the next begins, so that a slow database is not asked more than once.
  let waiting = false;
  document.addEventListener("htmx:beforeRequest", function () { waiting = true; });
  document.addEventListener("htmx:afterRequest", function (e) {
    waiting = false;
    document.body.classList.toggle("offline", !e.detail.successful);
  });
  if (button) setInterval(function () { if (!waiting) refresh(); }, every);
  document.addEventListener("visibilitychange", function () { if (!waiting) refresh(); });

  // A click is lost if its link is replaced between the press and the release.
  let pressed = false;
  document.addEventListener("pointerdown", function () { pressed = true; }, true);
  ["pointerup", "pointercancel"].forEach(function (end) { document.addEventListener(end, function () { setTimeout(function () { pressed = false; }); }, true); });

  // A swap replaces the scrolled tables, and may replace what has the focus.
  let scrolled = [], focused = null;
  document.addEventListener("htmx:beforeSwap", function (e) {
    if (pressed || stopped(document.getElementById("live"))) { // a request may have been under way
      e.detail.shouldSwap = false; // the next refresh is soon
      return;
    }
    scrolled = Array.from(document.querySelectorAll("#live .scroll")).map(function (s) { return s.scrollLeft; });
    const at = document.activeElement, region = document.getElementById("live");
    focused = region && region.contains(at) ? Array.from(region.querySelectorAll("a,button,[tabindex]")).indexOf(at) : null;
    if (focused !== null) focused = { index: focused, href: at.getAttribute("href"), label: at.getAttribute("aria-label") };
  });
  document.addEventListener("htmx:afterSwap", function () {
    document.querySelectorAll("#live .scroll").forEach(function (s, i) { if (scrolled[i]) s.scrollLeft = scrolled[i]; });
    if (focused) {
      const all = Array.from(document.querySelectorAll("#live a, #live button, #live [tabindex]"));
      const same = function (e) { return e.getAttribute("href") === focused.href && e.getAttribute("aria-label") === focused.label; };
      const to = all[focused.index] && same(all[focused.index]) ? all[focused.index] : all.find(same);
      if (to) to.focus({ preventScroll: true });
      focused = null;
    }
    draw();
  });

  function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  // Charts show the time of the database's log lines: UTC, with 24 hours.
  function clock(seconds, long) { return new Date(seconds * 1000).toISOString().slice(11, long ? 19 : 16); }

  // A chart outlives the swap of its figure, because a new one would flicker.
  const plots = new Map();

  function draw() {
    document.querySelectorAll("figure.chart[data-points]").forEach(function (figure) {
      const points = JSON.parse(figure.dataset.points), title = figure.dataset.title;
      if (points[0].length < 2) return;
      let plot = plots.get(title);
      if (plot) plot.chart.setData(points);
      else plots.set(title, plot = newPlot(figure, points));
      plot.box.setAttribute("aria-label", title + ": " + figure.querySelector("small").textContent);
      const spark = figure.querySelector("svg.spark");
      if (spark) spark.replaceWith(plot.box); else figure.append(plot.box);
      plot.say(figure);
      fit(plot);
    });
  }

  function newPlot(figure, points) {
    const box = document.createElement("div"), unit = figure.dataset.unit, title = figure.dataset.title;
    box.setAttribute("role", "img");
    let text = null, shown = "";
    const axis = function (more) {
      return Object.assign({
        stroke: function () { return color("--muted"); }, font: "11px system-ui, sans-serif",
        grid: { stroke: function () { return color("--line"); }, width: 1 }, ticks: { show: false },
      }, more);
    };
    const whole = [1, 2, 5].flatMap(function (n) { return Array.from({ length: 12 }, function (_, i) { return n * Math.pow(10, i); }); }).sort(function (a, b) { return a - b; });
    const chart = new window.uPlot({
      width: 300, height: 130, legend: { show: false }, cursor: { drag: { setScale: false }, y: false, points: { size: 6 } }, padding: [8, 8, 0, 0],
      scales: {
        x: { range: function (_, low, high) { return [Math.min(low, high - 600), high]; } },
        y: { range: function (_, low, high) { return [0, high > 0 ? high * 1.1 : 1]; } },
      },
      axes: [
        axis({ size: 24, incrs: [60, 120, 300, 600, 900, 1800, 3600], values: function (_, at) { return at.map(function (s) { return clock(s); }); } }),
        axis(Object.assign({ size: 48, space: 28, gap: 6 }, unit === "" ? { incrs: whole } : {})),
      ],
      series: [{}, {
        label: title, stroke: function () { return color("--accent"); }, fill: function () { return color("--fill"); }, width: 1.5, points: { show: false },
      }],
      hooks: {
        setCursor: [function (u) {
          if (!text) return;
          const i = u.cursor.idx;
          text.textContent = u.cursor.left < 0 || i === null || i === undefined ? shown
            : u.data[1][i].toLocaleString("en-US", { maximumFractionDigits: 2 }) + unit + " at " + clock(u.data[0][i], true) + " UTC";
        }],
      },
    }, points, box);
    const say = function (now) {
      text = now.querySelector("small");
      shown = text.textContent;
      if (chart.cursor.left >= 0) chart.setCursor({ left: chart.cursor.left, top: chart.cursor.top });
    };
    return { chart: chart, box: box, say: say };
  }

  function fit(plot) {
    const width = plot.box.clientWidth;
    if (width > 0 && width !== plot.chart.width) plot.chart.setSize({ width: width, height: 130 });
  }

  window.addEventListener("resize", function () { plots.forEach(fit); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    plots.forEach(function (plot) { plot.chart.redraw(); });
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", draw); else draw();
})();
