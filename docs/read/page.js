// What is seen: takes files, shows what was read of each, one after the other.
import { decoded } from "./pixels.js";

const drop = document.getElementById("drop");
const files = document.getElementById("files");
const results = document.getElementById("results");
const unready = document.getElementById("unready");

const NOTHING =
  "Nobody marked this image, or it was marked with a key, or changed too much. If it was cropped, resized or rotated " +
  "since, use floormark extract, which searches for the mark.";
const INCOMPLETE = "this copy of the site lacks what reads marks: build it with make docs, where npm is installed";

let reader; // with the network and its tables, fetched for the first image
let turn = Promise.resolve();

function line(kind, text) {
  const element = document.createElement("p");
  element.className = kind;
  element.textContent = text; // never as HTML: it may come from an image
  return element;
}

function show(item, state, ...lines) {
  item.className = state;
  item.dataset.state = state;
  item.lastElementChild.replaceChildren(item.lastElementChild.firstElementChild, ...lines);
}

function place(file) {
  const item = document.createElement("li");
  const picture = document.createElement("img");
  picture.alt = "";
  picture.src = URL.createObjectURL(file);
  picture.onload = () => URL.revokeObjectURL(picture.src);
  picture.onerror = () => picture.removeAttribute("src");
  const said = document.createElement("div");
  said.append(line("name", file.name));
  item.append(picture, said);
  show(item, "reading", line("detail", "reading …"));
  results.prepend(item);
  return item;
}

function loaded() {
  const incomplete = () => {
    throw new Error(INCOMPLETE);
  };
  reader ??= import("./reader.js").then((module) => module.Reader.load(), incomplete);
  return reader;
}

async function read(file, item) {
  try {
    const image = await decoded(file);
    const found = await (await loaded()).read(image);
    if (found === null) {
      show(item, "nothing", line("message", "No readable mark"), line("detail", NOTHING));
      return;
    }
    const errors = found.correctedErrors ? `${found.correctedErrors} wrong bits put right` : "no bit was wrong";
    show(item, "found", line("message", found.message), line("detail", `${found.kind}, ${errors}`));
  } catch (error) {
    show(item, "failed", line("message", "Not read"), line("detail", error.message));
  }
}

function take(chosen) {
  for (const file of chosen) {
    const item = place(file);
    turn = turn.then(() => read(file, item));
  }
}

files.addEventListener("change", () => {
  take([...files.files]);
  files.value = "";
});
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault(); // a file that misses the zone must not replace the page
    drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop") take([...event.dataTransfer.files]);
  });
}
unready.hidden = true;
drop.hidden = false;
document.documentElement.dataset.ready = "";
