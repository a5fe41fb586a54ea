"use strict";
(() => {
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  const episodes = all("details.episode");

  const keyOf = (row, at) => {
    const cell = row.cells[at];
    if (!cell) return "";
    const text = cell.dataset.key ?? cell.textContent.trim();
    const number = parseFloat(text.replace(/^v/, ""));
    return Number.isNaN(number) ? text : number;
  };
  const compared = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const sorted = (table, head) => {
    const at = head.cellIndex, body = table.tBodies[0];
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const rows = [...body.rows].map((row) => [keyOf(row, at), row]);
    rows.sort((a, b) => sign * compared(a[0], b[0]));
    body.append(...rows.map((pair) => pair[1]));
    all("th[aria-sort]", table.tHead).forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  };
  for (const table of all("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sorted(table, head));
      head.replaceChildren(button);
    }
  }

  const form = document.querySelector("form.filters");
  if (form) {
    const [text, kind, count] = ["filter-text", "filter-kind", "filter-count"].map((id) => document.getElementById(id));
    const texts = new Map();
    const textOf = (one) => {
      if (!texts.has(one)) texts.set(one, one.textContent.toLowerCase());
      return texts.get(one);
    };
    const filter = () => {
      const wanted = text.value.toLowerCase();
      let num = 0;
      for (const one of episodes) {
        const fits = (!kind.value || one.dataset.kind === kind.value) && (!wanted || textOf(one).includes(wanted));
        one.hidden = !fits;
        num += fits;
      }
      count.textContent = `${num} of ${episodes.length}`;
    };
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", filter);
    document.getElementById("open-all").addEventListener("click", () => episodes.forEach((one) => (one.open = !one.hidden)));
    document.getElementById("close-all").addEventListener("click", () => episodes.forEach((one) => (one.open = false)));
  }

  const open = () => {
    const inside = document.getElementById(location.hash.slice(1));
    const episode = inside && inside.closest("details.episode");
    if (!episode) return;
    episode.hidden = false;
    episode.open = true;
    episode.scrollIntoView();
    inside.focus({ preventScroll: true });
  };
  window.addEventListener("hashchange", open);
  open();
})();
