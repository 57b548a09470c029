"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  document.documentElement.classList.add("js");
  all(".controls, .copy").forEach((one) => { one.hidden = false; });
  const say = (text) => { find("said").textContent = text; };

  // Sorting: by the places that the fields of a column have among each other; those without content come last.
  const table = find("matrix-table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const SIGNS = { none: "↕", ascending: "▲", descending: "▼" };
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
  const place = (row, column) => {
    const own = row.cells[column].dataset.o;
    return own === undefined ? null : Number(own);
  };
  const sortBy = (column, order) => {
    const sign = order === "descending" ? -1 : 1;
    const sorted = [...rows];
    if (order !== "none") {
      sorted.sort((one, other) => {
        const [a, b] = [place(one, column), place(other, column)];
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (a - b);
      });
    }
    body.append(...sorted);
    heads.forEach((head, number) => {
      const own = number === column ? order : "none";
      if (own === "none") head.removeAttribute("aria-sort"); else head.setAttribute("aria-sort", own);
      head.querySelector("span").textContent = SIGNS[own];
    });
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    const sign = document.createElement("span");
    button.type = "button";
    button.textContent = head.textContent;
    sign.setAttribute("aria-hidden", "true");
    sign.textContent = SIGNS.none;
    button.append(sign);
    button.addEventListener("click", () => {
      const order = NEXT[head.getAttribute("aria-sort") || "none"];
      sortBy(column, order);
      say(order === "none" ? "In the order of the sweep" : `Sorted by ${button.firstChild.data}, ${order}`);
    });
    head.replaceChildren(button);
  });

  // Filtering.
  const form = find("filters");
  const known = rows.map((row) => ({
    row, verdict: row.dataset.v, axes: JSON.parse(row.dataset.a), words: row.textContent.toLowerCase(),
  }));
  const filter = () => {
    const words = find("words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = new Set(all("input[name=verdict]:checked", form).map((one) => one.value));
    const axes = all("select", form).filter((one) => one.value !== "*");
    let shown = 0;
    known.forEach((one) => {
      const fits = verdicts.has(one.verdict) && words.every((word) => one.words.includes(word))
        && axes.every((axis) => `=${one.axes[Number(axis.dataset.axis)]}` === axis.value);
      one.row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    find("count").textContent = `${shown} of ${known.length} rows shown`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  // A browser that goes back to this page fills in what was chosen before.
  addEventListener("pageshow", filter);

  // Details: closed until asked for, and the focus goes where the reader goes.
  const cells = all("details.cell");
  const focusOn = (one) => {
    one.focus({ preventScroll: true });
    one.scrollIntoView({ block: "start" });
  };
  const follow = (hash) => {
    const target = hash.length > 1 ? find(decodeURIComponent(hash.slice(1))) : null;
    if (target === null) return;
    const cell = target.closest("details.cell");
    if (cell !== null) {
      cell.open = true;
      focusOn(cell.querySelector("summary"));
    } else if (target.parentElement === body) {
      if (target.hidden) form.reset();
      setTimeout(() => focusOn(target.querySelector("a")));
    }
  };
  cells.forEach((one) => { one.open = false; });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#cell-'], a[href^='#row-']");
    if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (location.hash !== link.hash) history.pushState(null, "", link.hash);
    follow(link.hash);
  });
  body.addEventListener("click", (event) => {
    if (event.target.closest("a") !== null || String(getSelection()) !== "") return;
    const link = event.target.closest("tr").querySelector("a");
    if (link !== null) link.click();
  });
  addEventListener("hashchange", () => follow(location.hash));
  follow(location.hash);
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = cells.filter((one) => !one.open && one.classList.contains("printed"));
    closed.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));

  // The command of a cell.
  const copied = (code) => {
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return document.execCommand("copy");
  };
  all(".copy").forEach((button) => button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      done = copied(code);
    }
    say(done ? "Command copied" : "The command is selected, copy it with the keyboard");
    button.firstChild.data = done ? "Copied" : "Selected";
    setTimeout(() => { button.firstChild.data = "Copy"; }, 2000);
  }));

  // Axes against axes, laid out anew from the cells.
  const turn = find("turn");
  if (turn === null) return;
  const { axes, points } = JSON.parse(find("pivot-data").textContent);
  const made = (name, text, scope) => {
    const one = document.createElement(name);
    one.textContent = text;
    if (scope) one.scope = scope;
    return one;
  };
  const mark = ([, text, style, href, hint]) => {
    const link = made(href ? "a" : "span", text);
    link.className = `mark ${style}`;
    if (!href) return link;
    const more = made("span", ` details of ${hint}`);
    more.className = "vh";
    link.href = href;
    link.append(more);
    return link;
  };
  const layOut = () => {
    const chosen = all("select", turn).map((one) => one.value);
    const along = axes.map((_, number) => number).filter((number) => chosen[number] === "rows");
    const across = axes.map((_, number) => number).filter((number) => chosen[number] === "columns");
    const values = (point, numbers) => numbers.map((number) => point[0][number]);
    const key = (list) => JSON.stringify(list);
    const down = new Map(), over = new Map(), fields = new Map();
    points.forEach((point) => {
      const [row, column] = [values(point, along), values(point, across)];
      down.set(key(row), row);
      over.set(key(column), column);
      const field = key([row, column]);
      fields.set(field, [...(fields.get(field) || []), point]);
    });
    const titles = [...over.values()].map((column) => across.map((number, n) => `${axes[number]}=${column[n]}`).join(" "));
    const head = document.createElement("tr");
    head.append(...along.map((number) => made("th", axes[number], "col")), ...titles.map((one) => made("th", one || "verdict", "col")));
    const lines = [...down.values()].map((row) => {
      const line = document.createElement("tr");
      line.append(...row.map((value) => made("th", value, "row")));
      over.forEach((column) => {
        const field = document.createElement("td");
        (fields.get(key([row, column])) || []).forEach((point) => field.append(mark(point), " "));
        line.append(field);
      });
      return line;
    });
    const grid = find("pivot-table");
    grid.tHead.replaceChildren(head);
    grid.tBodies[0].replaceChildren(...lines);
    say(`${lines.length} rows and ${titles.length} columns of verdicts`);
  };
  turn.addEventListener("change", layOut);
  turn.addEventListener("submit", (event) => event.preventDefault());
  turn.addEventListener("reset", () => setTimeout(layOut));
})();
