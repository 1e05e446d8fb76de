"use strict";
// A button beside each line of code copies it.
document.querySelectorAll("figure.code").forEach((figure) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(figure.querySelector("code").textContent);
    button.textContent = "copied";
  });
  figure.append(button);
});
// The token under the mouse, or in focus, is described, and marked wherever it is.
const show = (event) => {
  document.querySelectorAll(".lit").forEach((element) => element.classList.remove("lit"));
  const cell = event.target.closest?.(".picture [title]");
  if (!cell) return;
  const picture = cell.closest(".picture");
  picture.querySelector(".info").textContent = cell.title;
  picture.querySelectorAll(`[data-t="${cell.dataset.t}"]`).forEach((element) => element.classList.add("lit"));
};
["mouseover", "focusin", "click"].forEach((name) => addEventListener(name, show));
