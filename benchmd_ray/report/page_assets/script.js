// Tables that sort, filter and stay quick: rows are made when they are scrolled to.
"use strict";

const STEP = 100; // rows made at a time, as many as stand in the HTML
const PRINTED = 1000; // rows of a table that are printed
const DASH = "–";
const MINUS = "−";

function thousands(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

function shown(value, kind, digits) {
  if (value === null) return DASH;
  if (kind === "integer") return thousands(value).replace("-", MINUS);
  if (kind === "p" && value < 10 ** -digits) return "<" + (10 ** -digits).toFixed(digits);
  const sign = (kind === "signed" || kind === "change") && value > 0 ? "+" : "";
  return sign + value.toFixed(digits).replace("-", MINUS);
}

function cell(column, row) {
  const made = document.createElement("td");
  if (column.kind === "text") {
    const text = column.levels[column.codes[row]];
    const link = column.links && column.links[row] ? document.createElement("a") : null;
    if (link) link.href = column.links[row];
    (link || made).textContent = text;
    if (link) made.append(link);
    return made;
  }
  made.className = "n";
  const value = column.values[row];
  const text = shown(value, column.kind, column.digits);
  if (value === null || !column.low) {
    made.textContent = text;
    return made;
  }
  const low = column.low[row];
  const high = column.high[row];
  if (column.kind === "change" && column.differs[row]) {
    const loss = (value > 0) === Boolean(column.worse.length && column.worse[row]);
    made.className = (value > 0 ? "n up " : "n down ") + (loss ? "loss" : "gain");
  }
  const bold = document.createElement("b");
  bold.textContent = text;
  made.append(bold);
  if (low === null) return made;
  const ends = document.createElement("span");
  ends.textContent = "[" + [low, high].map((v) => shown(v, column.kind, column.digits)).join(", ") + "]";
  made.append(" ", ends);
  return made;
}

function activate(root) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const columns = data.columns;
  const seen = columns.filter((column) => !column.hidden);
  const body = root.querySelector("tbody");
  const heads = [...root.querySelectorAll("thead th")];
  const form = root.querySelector("form");
  const search = form.querySelector("input");
  const selects = [...form.querySelectorAll("select")];
  const scroll = root.querySelector(".scroll");
  const count = root.querySelector(".count");
  const more = root.querySelector(".more");
  let order = Uint32Array.from({ length: data.rows }, (_, row) => row);
  let rows = order;
  let made = 0;
  let sorted = { place: -1, direction: "none" };
  let found = null; // lower-case text of each row, made at the first search

  function textOf(row) {
    return columns
      .filter((column) => column.kind === "text")
      .map((column) => column.levels[column.codes[row]])
      .join("\n")
      .toLowerCase();
  }

  function grow(upTo) {
    const end = Math.min(rows.length, upTo);
    const fragment = document.createDocumentFragment();
    for (; made < end; made++) {
      const line = document.createElement("tr");
      for (const column of seen) line.append(cell(column, rows[made]));
      fragment.append(line);
    }
    body.append(fragment);
  }

  function choose() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !found) found = Array.from({ length: data.rows }, (_, row) => textOf(row));
    const wanted = selects
      .filter((select) => select.value !== "")
      .map((select) => [columns[Number(select.dataset.column)].codes, Number(select.value)]);
    rows = order.filter(
      (row) =>
        wanted.every(([codes, code]) => codes[row] === code) &&
        words.every((word) => found[row].includes(word))
    );
    draw();
  }

  function draw() {
    body.replaceChildren();
    made = 0;
    grow(STEP);
    scroll.scrollTop = 0;
    const whole = `${thousands(data.rows)} row${data.rows === 1 ? "" : "s"}`;
    const chosen = selects
      .filter((select) => select.value !== "")
      .map((select) => `${columns[select.dataset.column].title} ${select.selectedOptions[0].text}`);
    const words = search.value.trim();
    if (words) chosen.push(`“${words}”`);
    const part = rows.length === data.rows ? whole : `${thousands(rows.length)} of ${whole}`;
    count.textContent = chosen.length ? `${part}: ${chosen.join(", ")}` : part;
    more.textContent = "";
  }

  function sort(place) {
    const next = { none: "ascending", ascending: "descending", descending: "none" };
    const direction = place === sorted.place ? next[sorted.direction] : "ascending";
    sorted = { place, direction };
    heads.forEach((head, i) => {
      head.setAttribute("aria-sort", i === place ? direction : "none");
    });
    order = Uint32Array.from({ length: data.rows }, (_, row) => row);
    if (direction !== "none") {
      const values = seen[place].codes || seen[place].values;
      const dash = seen[place].levels ? seen[place].levels.indexOf(DASH) : null;
      const factor = direction === "ascending" ? 1 : -1;
      // Rows without a value stay last in both directions; equal rows keep their first order.
      order.sort((a, b) => {
        const x = values[a];
        const y = values[b];
        if (x === y) return a - b;
        if (x === dash) return 1;
        if (y === dash) return -1;
        return x < y ? -factor : factor;
      });
    }
    choose();
  }

  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(place));
  });
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(choose));
  search.addEventListener("input", choose);
  selects.forEach((select) => select.addEventListener("change", choose));
  const download = form.querySelector("[data-csv]");
  download.addEventListener("click", () => save(download.dataset.csv, "text/csv", csv(columns, rows)));
  scroll.addEventListener("scroll", () => {
    if (scroll.scrollTop + 2 * scroll.clientHeight > scroll.scrollHeight) grow(made + STEP);
  });
  window.addEventListener("beforeprint", () => {
    grow(PRINTED);
    if (made < rows.length) {
      more.textContent = `Printed: the first ${thousands(made)} of ${thousands(rows.length)} rows; all are in the CSV files.`;
    }
  });
  choose();
}

document.querySelectorAll("[data-table]").forEach(activate);

// Downloads: a table as it is filtered and sorted, the matrix with all digits, a figure as SVG.
function csv(columns, rows) {
  const inert = (text) => (/^[=+\-@\t\r\n]/.test(text) ? "'" + text : text); // no formulas
  const quoted = (text) => `"${inert(text).replaceAll('"', '""')}"`;
  const parts = columns.flatMap((column) => {
    if (column.kind === "text") {
      return [[column.title, (row) => quoted(column.levels[column.codes[row]])]];
    }
    const names = column.low ? ["values", "low", "high"] : ["values"];
    return names.map((name) => [
      name === "values" ? column.title : `${column.title}, ${name}`,
      (row) => column[name][row] ?? "",
    ]);
  });
  const lines = Array.from(rows, (row) => parts.map(([, of]) => of(row)).join(","));
  return [parts.map(([title]) => quoted(title)).join(","), ...lines, ""].join("\n");
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

document.querySelectorAll("[data-matrix]").forEach((root) => {
  const button = root.querySelector("button");
  button.addEventListener("click", () => save(button.dataset.csv, "text/csv", root.dataset.matrix));
  button.hidden = false;
});
document.querySelectorAll("[data-svg]").forEach((button) => {
  const { src } = button.closest("figure").querySelector("img");
  const text = () => decodeURIComponent(src.slice(src.indexOf(",") + 1));
  button.addEventListener("click", () => save(button.dataset.svg, "image/svg+xml", text()));
  button.hidden = false;
});

// What is wider than its box has a cue, which ends where its right edge is seen.
document.querySelectorAll(".scroll").forEach((box) => {
  const mark = () => {
    box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    box.classList.toggle("cut", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", mark);
  new ResizeObserver(mark).observe(box);
});

// Links open the folded sections that they lead to; print has them all.
function unfold(hash) {
  const target = document.getElementById(hash.slice(1));
  for (let part = target; part; part = part.parentElement) {
    if (part.tagName === "DETAILS") part.open = true;
  }
  const inside = target && target.querySelector(":scope > details");
  if (inside) inside.open = true;
}
document.querySelectorAll("a[href^='#']").forEach((link) => {
  link.addEventListener("click", () => unfold(link.hash));
});
unfold(location.hash);
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((part) => (part.open = true));
});

// The table of contents marks the section that is being read.
const links = new Map(
  [...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link])
);
const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const link = links.get(entry.target.id);
      if (!link || !entry.isIntersecting) continue;
      links.forEach((other) => other.removeAttribute("aria-current"));
      link.setAttribute("aria-current", "true");
    }
  },
  { rootMargin: "-10% 0px -80% 0px" }
);
document.querySelectorAll("main section[id]").forEach((section) => watcher.observe(section));
