// Questions about the whole page that the dashboard's tests ask inside the browser; each name is called by them.
window.checks = {
  /** Controls, regions and tables without a name that a screen reader could say. */
  unnamed() {
    const wanted = "button, input, select, [role=tab], [role=slider], [role=img], [role=region], nav, table";
    const named = (node) =>
      node.getAttribute("aria-label") ||
      node.getAttribute("aria-labelledby") ||
      (node.labels && node.labels.length && node.labels[0].innerText) ||
      (node.tagName === "TABLE" && node.caption) ||
      node.innerText;
    const nodes = [...document.querySelectorAll(wanted)].filter((node) => !node.closest("dialog:not([open])"));
    return nodes.filter((node) => !named(node)).map((node) => node.outerHTML.slice(0, 120));
  },

  tablesWithoutHeaders() {
    return [...document.querySelectorAll("table")].filter((table) => !table.querySelector("thead th[scope=col]")).length;
  },

  /** Milliseconds for drawing everything twice. */
  drawTwice() {
    const begin = performance.now();
    for (const button of document.querySelectorAll("#lang-zh, #lang-en")) button.click();
    void document.body.offsetHeight;
    return performance.now() - begin;
  },

  /** How many texts were looked at, and those whose contrast is below WCAG's 4.5. Decoration is left out. */
  contrast() {
    const decoration = "[aria-hidden=true], option, .lane-time, .gate.clear .gate-count";
    const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
    const channel = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
    const behind = (node) => {
      for (; node; node = node.parentElement) {
        const colour = numbers(getComputedStyle(node).backgroundColor);
        if (colour.length === 3 || colour[3] > 0.99) return colour;
      }
      return [255, 255, 255];
    };
    const poor = new Set();
    let looked = 0;
    const walker = document.createTreeWalker(document.querySelector(".shell"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement, style = getComputedStyle(node);
      const invisible = !walker.currentNode.textContent.trim() || !node.getClientRects().length || style.clipPath !== "none";
      if (invisible || node.closest(decoration)) continue;
      looked += 1;
      const [one, other] = [light(numbers(style.color)), light(behind(node))];
      const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (ratio < 4.5) poor.add(`${node.className || node.tagName} ${ratio.toFixed(2)}`);
    }
    return { looked, poor: [...poor] };
  },
};
