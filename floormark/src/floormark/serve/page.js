"use strict";

const token = new URLSearchParams(location.search).get("token") ?? "";
const files = { image: null, original: null, certificate: null };
const planes = {}; // what is drawn, by role: the facts of a picture and its values
const downloads = [];
let asked = 0; // only the answer to the last question is shown
let marks = [];

const at = (id) => document.getElementById(id);

/** An element with text, which is never read as HTML. */
function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** Ask the server: a line of JSON and the files go there, and the same comes back. */
async function ask(path, roles, extra = {}) {
  const given = roles.filter((role) => files[role]);
  const line = { ...extra, files: given.map((role) => [role, files[role].name, files[role].size]) };
  const answer = await fetch(path, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/octet-stream" },
    body: new Blob([JSON.stringify(line), "\n", ...given.map((role) => files[role])]),
  }).catch(() => { throw new Error("floormark serve gives no answer. Was it ended, or is the file too large?"); });
  if (!answer.ok) {
    const told = await answer.text();
    let problem = told;
    try { problem = JSON.parse(told).problem; } catch { /* plain text */ }
    throw new Error(problem || `The server answered with ${answer.status}.`);
  }
  const body = new Uint8Array(await answer.arrayBuffer());
  const end = body.indexOf(10);
  const facts = JSON.parse(new TextDecoder().decode(body.subarray(0, end)));
  let from = end + 1;
  const parts = facts.sizes.map((size) => body.slice(from, from += size));
  return { facts, parts };
}

/** Do what takes a while: say so, and what went wrong. */
async function working(told, work) {
  const mine = ++asked;
  at("problem").hidden = true;
  at("status").textContent = told;
  at("status").classList.remove("visually-hidden");
  document.body.classList.add("busy");
  at("mark").querySelector("button").disabled = true;
  try {
    await work(() => mine === asked);
  } catch (error) {
    if (mine !== asked) return;
    at("problem").textContent = error.message;
    at("problem").hidden = false;
    at("problem").scrollIntoView({ block: "nearest" });
  } finally {
    if (mine === asked) {
      if (at("status").textContent === told) at("status").textContent = "";
      document.body.classList.remove("busy");
      at("mark").querySelector("button").disabled = false;
    }
  }
}

function inspect({ focus = false } = {}) {
  if (!files.image) return;
  at("result").hidden = true;
  return working("Reading …", async (wanted) => {
    const { facts, parts } = await ask("inspect", ["image", "original", "certificate"]);
    if (wanted()) show(facts, parts, focus);
  });
}

function show(facts, parts, focus) {
  marks = facts.marks;
  const [first] = marks;
  const messages = [...new Set(marks.map((mark) => mark.message))]; // one mark may be found in several places
  const each = messages.map((message) => marks.filter((mark) => mark.message === message));
  at("headline").textContent = each.map(([mark]) => mark.record?.owner || mark.message).join(", ") || "No readable watermark";
  if (first?.belongs === false) {
    at("headline").append(element("span", first.missing ? " – but a part of the image was replaced" : " – but the mark belongs to another image", "bad"));
  }
  at("marks").replaceChildren(...(first ? each.map((same) => markFacts(same, each.length > 1, facts)) : unmarked(facts)));
  verdict(facts.verdict ?? []);
  measured(facts.measured);
  const roles = facts.pictures.length > 1 ? ["image", "original"] : ["image"];
  delete planes.original;
  roles.forEach((role, number) => { planes[role] = { ...facts.pictures[number], values: values(facts.pictures[number], parts[number]) }; });
  at("figure-original").hidden = at("figure-difference").hidden = at("gain-label").hidden = !planes.original;
  at("pictures").classList.toggle("one", !planes.original);
  at("where-label").hidden = at("legend").hidden = !marks.length;
  at("marking").hidden = Boolean(first);
  at("marking-title").textContent = "Mark this image";
  at("mark").hidden = at("message-hint").hidden = false;
  at("message-hint").textContent = facts.registered
    ? "The register keeps the message; the image gets a random identifier."
    : "Up to 16 bytes are hidden in the image itself.";
  at("result").hidden = false;
  resetView();
  at("status").textContent = at("headline").textContent; // for who cannot see it
  at("status").classList.add("visually-hidden");
  if (focus) at("headline").focus();
}

function list(rows) {
  const made = document.createElement("dl");
  for (const [name, value] of rows) if (value) made.append(element("dt", name), element("dd", value));
  return made;
}

function recordRows(record) {
  if (!record) return [];
  return [
    ["Made of", record.source],
    ["Recorded", `${record.time.slice(0, 16).replace("T", " ")} UTC${record.state === "written" ? "" : `, ${record.state}`}`],
    ["UID before", record.old_uid],
    ["UID after", record.new_uid],
  ];
}

const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;

function markFacts(same, several, facts) {
  const [mark] = same;
  const places = same.map(({ box }) => `${box[2]} × ${box[3]} pixels at ${box[0]}, ${box[1]}`);
  const whole = mark.grid ? "in the whole image" : places.join("; ");
  const belongs = { true: "to this image", false: "to another image: it was copied, or a part was replaced", null: "cannot be said" };
  const rows = [
    ["Whose", mark.record ? mark.record.owner || "recorded without a name" : facts.registered ? "not in the register" : ""],
    [mark.record ? "Identifier" : "Message", mark.message],
    ["Belongs", belongs[mark.belongs]],
    ["Confidence", mark.confidence > 0.9999999999 ? "over 99.99999999 %" : `${(100 * mark.confidence).toFixed(6)} %`],
    ["Corrected", counted(mark.corrected_errors, "bit")],
    ["Where", mark.missing ? `${whole}, but missing in ${counted(mark.missing, "part")}` : whole],
    ["Key", mark.key],
    ...recordRows(mark.record),
  ];
  const made = document.createElement("div");
  if (several) made.append(element("h3", mark.record?.owner || mark.message));
  made.append(list(rows));
  return made;
}

function unmarked(facts) {
  const other = facts.other_key ? [element("p", "There is a mark, but none of the keys reads it.")] : [];
  return [...other, ...unread(facts)];
}

function unread(facts) {
  if (!facts.registered) return [element("p", "Nothing was found, also not where the image may have been cropped, turned or resized.", "faint")];
  if (!facts.records.length) return [element("p", "Nothing was found, and the register knows neither the file nor its pixels.", "faint")];
  return [element("p", "The register knows this file or its pixels:", "faint"), ...facts.records.map((record) => list([["Whose", record.owner || "recorded without a name"], ["Identifier", record.identifier], ...recordRows(record)]))];
}

function verdict(lines) {
  at("verdict").replaceChildren(...lines.map(({ good, text }) => {
    const line = element("li", text, good === null ? "open" : good ? "good" : "bad");
    if (good !== null) line.prepend(element("span", good ? "Holds: " : "Problem: ", "visually-hidden"));
    return line;
  }));
}

function measured(found) {
  const dB = (value) => (value === null ? "no pixel changed" : `${value.toFixed(2)} dB`);
  const rows = found ? [
    ["PSNR", `${dB(found.shown_psnr)}${found.floor === null ? "" : `, floor ${found.floor} dB`}`],
    ["Worst patch", found.min_adjusted_patch_psnr === null ? "" : `${dB(found.min_adjusted_patch_psnr)} by its own floor`],
    ["SSIM", found.ssim === null ? "" : found.ssim.toFixed(4)],
    ["Largest change", `${found.max_difference}${found.unit ? ` (${+found.largest_change.toFixed(3)} ${found.unit})` : ""} of ${+found.shown.toFixed(1)} shown`],
    ["Changed pixels", `${(100 * found.changed_share).toFixed(1)} %`],
  ] : [];
  at("measured").replaceWith(Object.assign(list(rows), { id: "measured" }));
}

// Pictures

function values(facts, part) {
  return facts.bytes === 1 ? part : new Uint16Array(part.buffer, part.byteOffset, part.byteLength / 2);
}

function paint(canvas, plane, level) {
  canvas.width = plane.width;
  canvas.height = plane.height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(plane.width, plane.height);
  const { channels } = plane;
  for (let from = 0, to = 0; to < image.data.length; from += channels, to += 4) {
    for (let channel = 0; channel < 3; channel++) image.data[to + channel] = level(from + (channels === 3 ? channel : 0));
    image.data[to + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function draw() {
  const { image, original } = planes;
  if (!image) return;
  const centre = Number(at("centre").value), width = Math.max(1, Number(at("width").value)), gain = 2 ** Number(at("gain").value);
  const table = new Uint8ClampedArray(image.peak + 1);
  for (let value = 0; value <= image.peak; value++) {
    const level = (255 * (value - centre + width / 2)) / width;
    table[value] = image.inverted ? 255 - level : level;
  }
  paint(at("canvas-image"), image, (place) => table[image.values[place]]);
  if (original) {
    paint(at("canvas-original"), original, (place) => table[original.values[place]]);
    const sign = image.inverted ? -1 : 1;
    paint(at("canvas-difference"), image, (place) => 128 + (sign * gain * 255 * (image.values[place] - original.values[place])) / width);
  }
  const shownAs = image.step > 1 ? `, one pixel in ${image.step} shown` : "";
  at("caption-image").textContent = `${original ? "Marked" : "Image"}: ${image.full[0]} × ${image.full[1]} pixels${shownAs}`;
  at("canvas-image").setAttribute("aria-label", marks.length ? "The image that is marked" : "The image");
  at("caption-difference").textContent = `Difference × ${gain}; grey where nothing changed`;
  at("centre-value").textContent = Math.round(centre + image.lowest);
  at("width-value").textContent = Math.round(width);
  at("gain-value").textContent = `× ${gain}`;
  drawMarks();
}

function drawMarks() {
  const overlay = at("overlay"), { image } = planes, context = overlay.getContext("2d");
  const scale = Math.max(1, 1200 / Math.max(image.width, image.height));
  overlay.width = Math.round(image.width * scale);
  overlay.height = Math.round(image.height * scale);
  at("legend").textContent = "";
  if (!at("where").checked || !marks.length) return;
  const told = new Set();
  for (const mark of marks) {
    if (mark.grid) {
      mark.parts.forEach((row, down) => [...row].forEach((part, across) => {
        const left = (mark.grid.left + across * mark.grid.width) * overlay.width, top = (mark.grid.top + down * mark.grid.height) * overlay.height;
        const box = [left + 1.5, top + 1.5, mark.grid.width * overlay.width - 3, mark.grid.height * overlay.height - 3];
        if (part === ".") return;
        told.add(part);
        context.fillStyle = part === "+" ? "rgb(70 197 150 / 11%)" : "rgb(224 72 66 / 55%)";
        context.strokeStyle = part === "+" ? "rgb(70 197 150 / 45%)" : "rgb(255 120 110)";
        context.lineWidth = part === "+" ? 1 : 2.5;
        context.fillRect(...box);
        context.strokeRect(...box);
      }));
    } else {
      const [left, top, width, height] = mark.box, [across, down] = [overlay.width / image.full[0], overlay.height / image.full[1]];
      context.strokeStyle = "rgb(70 197 150)";
      context.lineWidth = 4;
      context.strokeRect(left * across + 2, top * down + 2, width * across - 4, height * down - 4);
      told.add("box");
    }
  }
  const words = { "+": "Green: the mark was read here, or close by.", "-": "Red: it is missing here and around, so this was put there later.", box: "Framed: here a mark was read." };
  const nothing = marks.some((mark) => mark.grid && mark.parts.some((row) => row.includes("."))) ? " Elsewhere nothing can be said." : "";
  at("legend").textContent = [...told].sort().map((each) => words[each]).join(" ") + nothing;
}

function resetView() {
  const { low, high, values: stored } = planes.image;
  let [least, most] = [low, high];
  for (const value of stored) [least, most] = [Math.min(least, value), Math.max(most, value)];
  Object.assign(at("centre"), { min: least, max: most, value: (low + high) / 2 });
  Object.assign(at("width"), { min: 1, max: most - least, value: high - low });
  at("gain").value = 4;
  draw();
}

// Files

function take(role, file) {
  if (!file) return;
  files[role] = file;
  if (role === "image") { // what belonged to another image
    for (const other of ["original", "certificate"]) {
      files[other] = null;
      at(other).value = "";
      named(other);
    }
    forget();
  }
  at("files").classList.add("begun");
  named(role);
  inspect();
}

const hints = Object.fromEntries(Object.keys(files).map((role) => [role, at(`${role}-name`).textContent]));

function named(role) {
  at(`${role}-name`).textContent = files[role]?.name ?? hints[role];
  at(role).closest(".drop").classList.toggle("filled", Boolean(files[role]));
}

function forget() {
  downloads.splice(0).forEach((address) => URL.revokeObjectURL(address));
  at("downloads").hidden = true;
  at("marking").hidden = true;
}

for (const drop of document.querySelectorAll(".drop")) {
  const { role } = drop.dataset;
  at(role).addEventListener("change", () => take(role, at(role).files[0]));
  drop.addEventListener("dragenter", () => drop.classList.add("over"));
  drop.addEventListener("dragleave", (event) => { if (!drop.contains(event.relatedTarget)) drop.classList.remove("over"); });
}
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  document.querySelectorAll(".over").forEach((each) => each.classList.remove("over"));
  take(event.target.closest?.(".drop")?.dataset.role ?? "image", event.dataTransfer.files[0]);
});

for (const id of ["centre", "width", "gain"]) at(id).addEventListener("input", draw);
at("where").addEventListener("change", drawMarks);
at("reset").addEventListener("click", resetView);

at("mark").addEventListener("submit", (event) => {
  event.preventDefault();
  working("Marking …", async (wanted) => {
    const { facts, parts } = await ask("mark", ["image"], { message: at("message").value, psnr: Number(at("psnr").value) });
    if (!wanted()) return;
    const made = [new File([parts[0]], facts.name), new File([parts[1]], `${facts.name}.json`, { type: "application/json" })];
    forget();
    made.forEach((file, number) => {
      const link = at(number ? "download-certificate" : "download-image");
      downloads.push(link.href = URL.createObjectURL(file));
      link.download = file.name;
      link.textContent = number ? "Download its certificate" : `Download ${file.name}`;
    });
    [files.original, files.image, files.certificate] = [files.image, ...made];
    for (const role of Object.keys(files)) named(role);
    await inspect({ focus: true });
    at("marking").hidden = false;
    at("mark").hidden = at("message-hint").hidden = true;
    at("marking-title").textContent = "Marked";
    at("downloads").hidden = false;
  });
});

document.documentElement.dataset.ready = "";
