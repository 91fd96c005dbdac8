// From what the network reads of each bit to the message, or to nothing, as floormark does it in payload/.
import { blake2b } from "./packages/noble-hashes/blake2.js";

const HEADER = 4; // bits: two of version, two of kind

// Bits as bytes, the first bit highest; the last byte is filled with zeros.
function packed(bits) {
  const bytes = new Uint8Array(Math.ceil(bits.length / 8));
  bits.forEach((bit, at) => (bytes[at >> 3] |= bit << (7 - (at & 7))));
  return bytes;
}

function hexadecimal(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Codec {
  // `known` is what floormark says of its own; `tables` hold order and mask of the bits, of each pilot.
  constructor(known, tables) {
    Object.assign(this, known);
    this.tables = tables;
    this.key = Uint8Array.from(known.checksum_key.match(/../g), (digits) => parseInt(digits, 16));
    this.powers = [1];
    const order = (1 << known.exponent) - 1;
    while (this.powers.length < order) {
      const doubled = this.powers.at(-1) << 1;
      this.powers.push(doubled >> known.exponent ? doubled ^ known.polynomial : doubled);
    }
    this.logarithms = new Array(order + 1);
    this.powers.forEach((value, power) => (this.logarithms[value] = power));
    this.most = Math.max(...known.layouts.map((layout) => layout.correctable));
  }

  // The message that was encoded with this pilot, or null.
  decode(logits, pilot) {
    const { bits } = this;
    const order = this.tables.subarray(2 * pilot * bits, (2 * pilot + 1) * bits);
    const mask = this.tables.subarray((2 * pilot + 1) * bits, (2 * pilot + 2) * bits);
    const frame = new Float64Array(bits);
    for (let at = 0; at < bits; at++) frame[order[at]] = logits[at];
    for (let at = 0; at < bits; at++) if (mask[at]) frame[at] = -frame[at];
    const read = Uint8Array.from(frame, (value) => (value > 0 ? 1 : 0));
    for (const [layout, word] of this.candidates(frame, read)) {
      const body = word.subarray(0, HEADER + 8 * layout.length + this.content_bits);
      const checksum = this.checksum(layout, body);
      if (checksum.every((bit, at) => bit === word[body.length + at])) {
        const correctedErrors = word.reduce((total, bit, at) => total + (bit ^ read[at]), 0);
        return { ...this.payload(body.subarray(0, HEADER + 8 * layout.length)), correctedErrors };
      }
    }
    return null;
  }

  checksum(layout, body) {
    const sizes = new TextEncoder().encode(`${this.bits} ${layout.length} ${this.content_bits} `);
    const digest = blake2b(Uint8Array.of(...sizes, ...packed(body)), { key: this.key });
    return Array.from({ length: layout.checksum }, (_, at) => (digest[at >> 3] >> (7 - (at & 7))) & 1);
  }

  payload(said) {
    const head = packed(said.subarray(0, HEADER))[0] >> 4;
    const kind = this.kinds[head & 3];
    const content = packed(said.subarray(HEADER));
    if (!this.versions.includes(head >> 2) || kind === undefined) {
      throw new Error(`the watermark has the format ${head >> 2}.${head & 3}, which this page does not know`);
    }
    const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    if (kind === "text") return { kind, message: utf8.decode(content) };
    if (kind !== "bits") return { kind, message: hexadecimal(content) };
    const digits = Array.from(content, (byte) => byte.toString(2).padStart(8, "0")).join("");
    return { kind, message: digits.slice(digits.indexOf("1") + 1) };
  }

  // Codewords of each layout: first those within its errors, then the likeliest.
  *candidates(frame, read) {
    yield* this.corrected(read);
    yield* this.nearest(frame, read);
  }

  times(a, b) {
    return a && b ? this.powers[(this.logarithms[a] + this.logarithms[b]) % this.powers.length] : 0;
  }

  over(a, b) {
    return a ? this.powers[(this.logarithms[a] - this.logarithms[b] + this.powers.length) % this.powers.length] : 0;
  }

  // Of each layout the codeword that differs from `word` in no more bits than it corrects, if there is one.
  *corrected(word) {
    const { bits, powers, logarithms, most } = this;
    const syndromes = Array.from({ length: 2 * most }, (_, at) =>
      word.reduce((sum, bit, place) => (bit ? sum ^ powers[((at + 1) * (bits - 1 - place)) % powers.length] : sum), 0),
    );
    const locators = this.shortestRecurrences(syndromes);
    for (const layout of this.layouts) {
      const locator = locators[2 * layout.correctable - 1];
      if (locator.length > layout.correctable + 1) continue;
      const wrong = [];
      for (let degree = 0; degree < bits; degree++) {
        const value = locator.reduce((sum, factor, at) => {
          if (!factor) return sum;
          const power = (logarithms[factor] - at * degree) % powers.length;
          return sum ^ powers[power < 0 ? power + powers.length : power];
        }, 0);
        if (value === 0) wrong.push(bits - 1 - degree);
      }
      if (wrong.length !== locator.length - 1) continue;
      const found = word.slice();
      for (const place of wrong) found[place] ^= 1;
      yield [layout, found];
    }
  }

  // The shortest linear recurrence that gives the first 1, 2, ... values, by Berlekamp and Massey.
  shortestRecurrences(values) {
    let [found, before, length, last, gap] = [[1], [1], 0, 1, 1];
    return values.map((_, step) => {
      const wrong = found.reduce((sum, factor, at) => (at <= step ? sum ^ this.times(factor, values[step - at]) : sum), 0);
      if (wrong) {
        const factor = this.over(wrong, last);
        const change = [...Array(gap).fill(0), ...before.map((value) => this.times(factor, value))];
        const size = Math.max(found.length, change.length);
        const better = Array.from({ length: size }, (_, at) => (found[at] ?? 0) ^ (change[at] ?? 0));
        if (2 * length <= step) [before, length, last, gap] = [found, step + 1 - length, wrong, 0];
        found = better;
      }
      gap++;
      return Array.from({ length: length + 1 }, (_, at) => found[at] ?? 0);
    });
  }

  // Of each layout the codeword that contradicts `frame` least, among those that up to two changes of its most reliable
  // independent bits make: ordered statistics decoding of order 2.
  *nearest(frame, read) {
    const { bits } = this;
    const order = Array.from(frame.keys()).sort((one, other) => Math.abs(frame[other]) - Math.abs(frame[one]));
    const forms = this.reducedChecks(order);
    for (const layout of this.layouts) {
      const form = forms.get(layout.correctable);
      const reliable = Array.from(frame.keys()).filter((at) => !form.has(at));
      const rows = reliable.map((at) => {
        const row = new Uint8Array(bits);
        row[at] = 1;
        for (const [lead, check] of form) row[lead] = check[at];
        return row;
      });
      yield [layout, this.bestOf(rows, reliable, order, frame, read)];
    }
  }

  bestOf(rows, reliable, order, frame, read) {
    const { bits } = this;
    const start = new Uint8Array(bits);
    reliable.forEach((at, number) => {
      if (read[order[at]]) for (let place = 0; place < bits; place++) start[place] ^= rows[number][place];
    });
    const agreement = order.map((at, place) => (start[place] === read[at] ? 1 : -1) * Math.abs(frame[at]));
    // The sum of what agrees after adding a row to the start, or two; nothing is added to begin with.
    let best = [agreement.reduce((sum, value) => sum + value, 0)];
    rows.forEach((row, first) => {
      const changed = agreement.map((value, place) => (row[place] ? -value : value));
      const single = changed.reduce((sum, value) => sum + value, 0);
      if (single > best[0]) best = [single, first];
      for (let second = 0; second < first; second++) {
        const other = rows[second];
        let sum = 0;
        for (let place = 0; place < bits; place++) sum += other[place] ? -changed[place] : changed[place];
        if (sum > best[0]) best = [sum, first, second];
      }
    });
    const found = new Uint8Array(bits);
    order.forEach((at, place) => {
      found[at] = best.slice(1).reduce((bit, number) => bit ^ rows[number][place], start[place]);
    });
    return found;
  }

  // By how many errors are corrected: parity checks in reduced echelon form, by the bit that leads each of them. Bits
  // stand in `order`; the last ones lead.
  reducedChecks(order) {
    const { bits, exponent, powers, most } = this;
    const forms = new Map();
    const form = new Map();
    for (let root = 1; root < 2 * most; root += 2) {
      for (let digit = 0; digit < exponent; digit++) {
        const row = Uint8Array.from(order, (at) => (powers[(root * (bits - 1 - at)) % powers.length] >> digit) & 1);
        const add = (to, from) => from.forEach((bit, at) => (to[at] ^= bit));
        for (const [lead, other] of form) if (row[lead]) add(row, other);
        const lead = row.lastIndexOf(1);
        if (lead < 0) continue;
        for (const other of form.values()) if (other[lead]) add(other, row);
        form.set(lead, row);
      }
      forms.set((root + 1) / 2, new Map(Array.from(form, ([lead, row]) => [lead, row.slice()])));
    }
    return forms;
  }
}
