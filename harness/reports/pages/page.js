"use strict";
(() => {
  const root = document.documentElement;
  const failures = [...document.querySelectorAll(".failure")];
  const help = document.getElementById("help");
  let current = 0;

  // --- light and dark: remembered where the browser lets a file do so ---
  const remember = (theme) => { try { localStorage.setItem("lockstep-theme", theme); } catch { /* not here */ } };
  const recall = () => { try { return localStorage.getItem("lockstep-theme"); } catch { return null; } };
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const toggle = () => { root.dataset.theme = isDark() ? "light" : "dark"; remember(root.dataset.theme); };
  const known = recall();
  if (known === "light" || known === "dark") root.dataset.theme = known;

  // --- copying ---
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* older ways */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  const makeButton = (figure) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.setAttribute("aria-label", `copy ${figure.querySelector("figcaption").textContent}`);
    button.addEventListener("click", async () => {
      const done = await copy(figure.querySelector("code").textContent);
      button.textContent = done ? "copied" : "select it";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    figure.append(button);
  };
  document.querySelectorAll("figure.code").forEach(makeButton);
  document.querySelector(".buttons").hidden = false;
  document.getElementById("theme").addEventListener("click", toggle);
  document.getElementById("ask").addEventListener("click", () => help.showModal());

  // --- failures and steps ---
  const find = () => {
    const own = failures.indexOf(document.activeElement.closest(".failure"));
    return own >= 0 ? own : current;
  };
  const go = (number) => {
    if (!failures.length) return;
    current = Math.min(Math.max(number, 0), failures.length - 1);
    failures[current].focus({ preventScroll: true });
    failures[current].scrollIntoView({ block: "start" });
  };
  const turn = (by) => {
    current = find();
    const steps = failures.length ? [...failures[current].querySelectorAll(".step")] : [];
    if (!steps.length) return;
    const open = steps.findIndex((step) => step.open);
    const next = Math.min(Math.max(open < 0 ? (by > 0 ? 0 : steps.length - 1) : open + by, 0), steps.length - 1);
    steps.forEach((step, number) => { step.open = number === next; });
    steps[next].querySelector("summary").focus({ preventScroll: true });
    steps[next].scrollIntoView({ block: "nearest" });
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const actions = {
      ArrowRight: () => turn(1),
      ArrowLeft: () => turn(-1),
      j: () => go(document.activeElement.closest(".failure") ? find() + 1 : current),
      k: () => go(find() - 1),
      c: () => failures[find()]?.querySelector("figure.code button").click(),
      t: toggle,
      "?": () => help.showModal(),
    };
    const action = actions[event.key];
    if (!action || (event.key.startsWith("Arrow") && event.target.closest(".scroll, pre"))) return;
    event.preventDefault();
    action();
  });

  // --- whose token is where ---
  let lit = [];
  const say = (cell) => {
    if (!cell.matches("td")) return cell.title;
    const row = cell.parentElement;
    const head = cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
    const sees = { s: "sees", n: "does not see", m: "should see, and does not:", x: "sees, and should not:" }[cell.className.slice(0, 1)];
    return head.title ? `${row.cells[0].textContent} ${sees} ${head.title}` : "";
  };
  const show = (event) => {
    const cell = event.target.closest?.(".picture .chip, .grid thead th, .grid td");
    lit.forEach((one) => one.classList.remove("lit"));
    lit = [];
    if (!cell) return;
    const picture = cell.closest(".picture");
    picture.querySelector(".info").textContent = say(cell);
    const head = cell.matches("td") ? cell.closest("table").tHead.rows[0].cells[cell.cellIndex] : cell;
    if (head.dataset.t === undefined) return;
    lit = [...picture.querySelectorAll(`[data-t="${head.dataset.t}"]`)];
    if (cell.matches("td")) lit.push(cell);
    lit.forEach((one) => one.classList.add("lit"));
  };
  ["mouseover", "focusin", "click"].forEach((name) => addEventListener(name, show));

  addEventListener("beforeprint", () => {
    document.querySelectorAll(".step.here").forEach((step) => { step.open = true; });
  });
})();
