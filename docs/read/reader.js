// Reads an image that nobody moved and that was marked without a key, as floormark does it in tiling.py and prepared.py.
import * as onnx from "./packages/onnxruntime-web/ort.wasm.min.mjs";
import { Codec } from "./codec.js";
import { filled, gaussian, highest, lowest, picture, resampled, shrunk, uniform } from "./filters.js";

async function fetched(file) {
  const answer = await fetch(new URL(file, import.meta.url));
  if (!answer.ok) throw new Error(`${file} is missing on this site: ${answer.status}`);
  return answer;
}

export class Reader {
  constructor(session, known, tables) {
    this.session = session;
    this.known = known; // the constants of floormark, by its names
    const { PILOTS, TILE } = known;
    this.pilots = new Int16Array(tables, 0, PILOTS * TILE * TILE);
    this.codec = new Codec(known.codec, new Uint8Array(tables, this.pilots.byteLength));
  }

  // With the network and the tables that lie beside this page.
  static async load() {
    onnx.env.wasm.numThreads = 1; // more would want headers that only a server can give
    onnx.env.wasm.wasmPaths = new URL("packages/onnxruntime-web/", import.meta.url).href;
    const [network, known, tables] = await Promise.all([
      fetched("lattice-decoder.onnx").then((answer) => answer.arrayBuffer()),
      fetched("tables.json").then((answer) => answer.json()),
      fetched("tables.bin").then((answer) => answer.arrayBuffer()),
    ]);
    const session = await onnx.InferenceSession.create(new Uint8Array(network), { executionProviders: ["wasm"] });
    return new Reader(session, known, tables);
  }

  // What was hidden in an image of grey levels from 0 to 255: message, kind, correctedErrors; null if there is nothing.
  async read(image) {
    const { TILE, NETWORK_SIDE, MAX_NETWORK_PIXELS } = this.known;
    const { height, width } = image;
    const side = Math.min(height, width);
    if (side < TILE) return null;
    if (height * width > MAX_NETWORK_PIXELS * Math.max(1, Math.floor(side / NETWORK_SIDE)) ** 2) {
      throw new Error(`expected an image less oblong than ${width} x ${height}`);
    }
    const given = this.networkInput(image);
    for (const uncover of [false, true]) {
      const seen = uncover ? this.uncovered(given) : given;
      const pilots = seen === null ? [] : this.likelyPilots(seen);
      if (!pilots.length) continue;
      const logits = await this.logits(seen);
      for (const pilot of pilots) {
        const found = this.codec.decode(logits, pilot);
        if (found !== null) return found;
      }
    }
    return null;
  }

  // Grey levels at the network's pixels, and how many of these rows and columns lie in the image.
  networkInput(image) {
    const { CELL, NETWORK_SIDE, PICTURE_SIDE, SHARP_SCALE } = this.known;
    const side = Math.min(image.height, image.width);
    const factor = Math.max(1, Math.floor(side / PICTURE_SIDE));
    const scale = Math.max(1, side / NETWORK_SIDE) / factor;
    const seen = shrunk(image, factor);
    const whole = (length) => CELL * Math.max(1, Math.ceil(length / scale / CELL - 1e-6));
    const [height, width] = [whole(seen.height), whole(seen.width)];

    const smaller = Math.max(1, Math.floor(scale + 0.05));
    let small = shrunk(seen, smaller);
    const rest = scale / smaller;
    if (rest > SHARP_SCALE) small = gaussian(small, 0.4 * Math.sqrt(rest * rest - 1));
    const grey = resampled(small, rest, height, width);
    grey.values.forEach((value, at) => (grey.values[at] = Math.min(255, Math.max(0, value))));
    const inside = (length, most) => Array.from({ length: most }, (_, at) => rest * (at + 0.5) < length);
    return { grey, rows: inside(small.height, height), columns: inside(small.width, width), missing: null };
  }

  // The numbers of the pilots that fit, the likeliest first.
  likelyPilots({ grey, rows, columns, missing }) {
    const { PILOTS, TILE, ALIGNED_PILOTS, MIN_ALIGNED_SCORE } = this.known;
    const white = this.whitened(grey);
    const folded = new Float64Array(TILE * TILE);
    white.values.forEach((value, at) => {
      const [row, column] = [Math.floor(at / grey.width), at % grey.width];
      if (rows[row] && columns[column] && !missing?.[at]) folded[(row % TILE) * TILE + (column % TILE)] += value;
    });
    const likeness = Array.from({ length: PILOTS }, (_, number) => {
      const first = number * folded.length;
      return folded.reduce((total, value, at) => total + value * this.pilots[first + at], 0);
    });
    const mean = likeness.reduce((total, each) => total + each, 0) / PILOTS;
    const spread = Math.sqrt(likeness.reduce((total, each) => total + (each - mean) ** 2, 0) / PILOTS);
    return likeness
      .map((value, number) => [value / (spread + 1e-12), number])
      .filter(([score]) => score > MIN_ALIGNED_SCORE)
      .sort(([one], [other]) => other - one)
      .slice(0, ALIGNED_PILOTS)
      .map(([, number]) => number);
  }

  // High-pass filtered and scaled to local variance 1.
  whitened(grey) {
    const { TILE_SIGMA, FLAT_VARIANCE, WHITENED_RANGE } = this.known;
    const smooth = gaussian(grey, TILE_SIGMA, 3);
    const rough = picture(grey.height, grey.width, grey.values.map((value, at) => value - smooth.values[at]));
    const squares = picture(grey.height, grey.width, rough.values.map((value) => value * value));
    const variance = uniform(squares, Math.floor(8 * TILE_SIGMA));
    const scaled = rough.values.map((value, at) => {
      const found = value / Math.sqrt(variance.values[at] + FLAT_VARIANCE);
      return Math.min(WHITENED_RANGE, Math.max(-WHITENED_RANGE, found));
    });
    return picture(grey.height, grey.width, scaled);
  }

  // The same with what is flat, such as text boxes, filled in; null if nothing or all is flat.
  uncovered(given) {
    const { COVERED_SHAPES, COVERED_RANGE } = this.known;
    const { grey } = given;
    const missing = new Uint8Array(grey.values.length);
    for (const [rows, columns] of COVERED_SHAPES) {
      const [most, least] = [highest(grey, rows, columns), lowest(grey, rows, columns)];
      const flat = most.values.map((value, at) => (value - least.values[at] <= COVERED_RANGE ? 1 : 0));
      const around = highest(picture(grey.height, grey.width, flat), rows + 2, columns + 2);
      around.values.forEach((value, at) => (missing[at] |= value));
    }
    if (!missing.includes(1) || !missing.includes(0)) return null;
    return { ...given, grey: filled(grey, missing), missing };
  }

  // What the network reads of each bit.
  async logits({ grey, rows, columns, missing }) {
    const { CELL, MIN_UNCOVERED } = this.known;
    const [down, across] = [grey.height / CELL, grey.width / CELL];
    const covered = new Float32Array(down * across);
    const outside = new Uint8Array(down * across);
    for (let at = 0; at < grey.values.length; at++) {
      const [row, column] = [Math.floor(at / grey.width), at % grey.width];
      const cell = Math.floor(row / CELL) * across + Math.floor(column / CELL);
      if (!rows[row] || !columns[column]) outside[cell] = 1;
      if (missing?.[at]) covered[cell] += 1 / (CELL * CELL);
    }
    const weights = covered.map((share, cell) => (outside[cell] || share > 1 - MIN_UNCOVERED ? 0 : 1));
    const found = await this.session.run({
      picture: new onnx.Tensor("float32", grey.values.map((value) => value / 255), [grey.height, grey.width]),
      weights: new onnx.Tensor("float32", weights, [down, across]),
    });
    return found.logits.data;
  }
}
